//! Who asks, out of what a gateway passes on as it came: tokens become users, and addresses of IPv6 the group they are in.
//! Every door does the same, so that a client is in the same bucket by whichever it comes.

use super::Doors;
use super::address;
use super::error::Refusal;
use super::token;
use crate::core::request::Request;

const IP: &str = "ip";

/// What stands in the place of attributes that are not to be taken as they came.
#[derive(Debug, Default)]
pub(super) struct Asker {
    tokens: token::Found,
    refused: Option<Refusal>,
    /// Places of question and entry, and the text of the group.
    addresses: Vec<(usize, usize, String)>,
}

impl Asker {
    /// Reads the questions of one call.
    pub(super) fn read(doors: &Doors, questions: &[Request<'_>]) -> Self {
        let mut asker = Self::of_addresses(questions, doors.settings.ipv6_prefix);
        match token::find(doors, questions) {
            Ok(tokens) => asker.tokens = tokens,
            Err(refusal) => asker.refused = Some(refusal),
        }
        asker
    }

    /// Reads the addresses alone.
    pub(super) fn of_addresses(questions: &[Request<'_>], ipv6_prefix: u8) -> Self {
        let mut addresses = Vec::new();
        for (place, question) in questions.iter().enumerate() {
            for (entry, (name, value)) in question.attributes.iter().enumerate() {
                if *name == IP
                    && let Some(text) = address::regrouped(value, ipv6_prefix)
                {
                    addresses.push((place, entry, text));
                }
            }
        }
        Self { addresses, ..Self::default() }
    }

    /// The same questions with it in its place.
    ///
    /// # Errors
    /// For an invalid token, where these are refused.
    pub(super) fn stand_in<'b, Q: AsMut<[Request<'b>]>>(&'b self, mut asked: Q) -> Result<Q, Refusal> {
        if let Some(refusal) = &self.refused {
            return Err(refusal.clone());
        }
        let questions = asked.as_mut();
        // Addresses first: they stand where they stood, until tokens go.
        for (place, entry, text) in &self.addresses {
            let attributes = questions.get_mut(*place).map(|question| &mut question.attributes);
            if let Some((_, value)) = attributes.and_then(|attributes| attributes.get_mut(*entry)) {
                *value = text;
            }
        }
        token::apply(questions, &self.tokens);
        Ok(asked)
    }
}
