//! The reasons for which a rule denies, as every answer, record and metric names them.

/// The reason for which a rule denied a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DenialCause {
    /// The limit is used up: of a worldwide rule by all regions together, as far as is known here.
    UsedUp,
    /// This region's part of a worldwide limit is used, and the others have room or, under `split`, may have.
    Elsewhere,
    /// The regions have not agreed yet on what each may spend.
    NotAgreed,
    /// The store forgot what was spent, so what this region might have left is not admitted.
    Burnt,
    /// A region is cut off, and its part of the limit is left to it.
    CutOff,
    /// The store did not answer, or had no room: the failure policy denied.
    Degraded,
    /// A penalty shuts the client out.
    Penalty,
    /// A rule blocks the request, or who asks may not ask at all.
    Blocked,
    /// The cost is more than could ever pass.
    TooLarge,
}

impl DenialCause {
    /// Every one.
    pub const ALL: [Self; 9] = [
        Self::UsedUp,
        Self::Elsewhere,
        Self::NotAgreed,
        Self::Burnt,
        Self::CutOff,
        Self::Degraded,
        Self::Penalty,
        Self::Blocked,
        Self::TooLarge,
    ];

    /// The words of all of them.
    pub const WORDS: [&'static str; Self::ALL.len()] = {
        let mut words = [""; Self::ALL.len()];
        let mut place = 0;
        while place < words.len() {
            words[place] = Self::ALL[place].as_str();
            place += 1;
        }
        words
    };

    /// The word for answers, records and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UsedUp => "used_up",
            Self::Elsewhere => "elsewhere",
            Self::NotAgreed => "not_agreed",
            Self::Burnt => "burnt",
            Self::CutOff => "cut_off",
            Self::Degraded => "degraded",
            Self::Penalty => "penalty",
            Self::Blocked => "blocked",
            Self::TooLarge => "too_large",
        }
    }

    /// Reads what [`Self::as_str`] writes.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == text)
    }

    /// Its place in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A sentence for people, without its end.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::UsedUp => "the limit is used up",
            Self::Elsewhere => {
                "this region's part of the limit is used, and what is left of the rest lies in other regions"
            }
            Self::NotAgreed => "nothing is admitted before all regions have agreed on their shares",
            Self::Burnt => {
                "the store began too late to know what was spent, so what this region may have left is burnt"
            }
            Self::CutOff => "a region is cut off, and its part of the limit is left to it",
            Self::Degraded => "the store did not answer or had no room, and on_failure denies",
            Self::Penalty => "the client was denied too often, and a penalty shuts it out",
            Self::Blocked => "it is blocked",
            Self::TooLarge => "it asks for more than can ever pass",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_read_as_it_is_written_and_has_its_place() {
        for (place, cause) in DenialCause::ALL.into_iter().enumerate() {
            assert_eq!(DenialCause::from_text(cause.as_str()), Some(cause));
            assert_eq!(cause.index(), place);
        }
        assert_eq!(DenialCause::from_text("used up"), None);
    }
}
