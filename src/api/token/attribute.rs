//! A token among the attributes: a gateway that knows no better may pass on the client's `authorization` as
//! it came.
//!
//! The attribute never goes further than here: it becomes the user whom it names, or nothing.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Invalid, TokenUser};
use crate::api::Servers;
use crate::api::error::{Code, Refusal};
use crate::core::request::Request;

const AUTHORIZATION: &str = "authorization";
const USER: &str = "user";

/// Questions that bring a token, by their places, and whom each names.
pub(in crate::api) type FoundTokens = SmallVec<[(usize, Option<Arc<str>>); 1]>;

/// Reads the tokens among the attributes. Nothing is found where tokens are not configured.
///
/// # Errors
/// For an invalid token, where these are refused.
pub(in crate::api) fn find(servers: &Servers, questions: &[Request<'_>]) -> Result<FoundTokens, Refusal> {
    let mut found = FoundTokens::new();
    let Some(tokens) = servers.tokens.as_deref() else { return Ok(found) };
    for (place, question) in questions.iter().enumerate() {
        let Some(text) = question.attribute(AUTHORIZATION) else { continue };
        match tokens.user_of(text.as_bytes(), servers.engine.now()).map_err(|invalid| refusal(&invalid))? {
            TokenUser::Named(user) => found.push((place, Some(user))),
            TokenUser::Nobody => found.push((place, None)),
            TokenUser::Nothing => {}
        }
    }
    Ok(found)
}

/// Puts users in the place of tokens; a user whom the gateway names itself stays.
pub(in crate::api) fn apply<'b>(questions: &mut [Request<'b>], found: &'b FoundTokens) {
    for (place, user) in found {
        let Some(question) = questions.get_mut(*place) else { continue };
        question.attributes.retain(|(name, _)| *name != AUTHORIZATION);
        let Some(user) = user else { continue };
        match question.attributes.iter_mut().find(|(name, _)| *name == USER) {
            None => question.attributes.push((USER, user)),
            // A gateway that has nothing to say of the user says so by an empty text.
            Some((_, named)) if named.is_empty() => *named = user,
            Some(_) => {}
        }
    }
}

/// The answer to an invalid token where these are refused.
pub(in crate::api) fn refusal(invalid: &Invalid) -> Refusal {
    let message = format!("the token is not valid: {invalid}");
    Refusal { field: Some(AUTHORIZATION.to_owned()), ..Refusal::new(Code::Token, message) }
}
