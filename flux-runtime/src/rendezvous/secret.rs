//! Who may join: both sides show that they know the token, and neither says it.
//!
//! Each sends random bytes, and answers with a code over both greetings whose key is the token. So
//! what was overheard once is of no use in another connection. What follows is neither encrypted nor
//! signed: the token keeps strangers out, not those who can change packets on the way.

use super::wire::GREETING_BYTES;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;

pub(crate) const NONCE_BYTES: usize = 32;
pub(crate) const PROOF_BYTES: usize = 32;

/// Random bytes of one connection.
pub(crate) type Nonce = [u8; NONCE_BYTES];

/// A secret that the ranks of a job share; empty where there is none.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Token(Vec<u8>);

/// Who proves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Rank,
    Coordinator,
}

impl Side {
    const fn name(self) -> &'static [u8] {
        match self {
            Side::Rank => b"flux rank",
            Side::Coordinator => b"flux coordinator",
        }
    }
}

/// Two greetings, that of the rank first.
pub(crate) type Greetings<'a> = [&'a [u8; GREETING_BYTES]; 2];

impl Token {
    pub(crate) fn new(secret: impl Into<Vec<u8>>) -> Token {
        Token(secret.into())
    }

    /// Shows that `side` knows the token.
    pub(crate) fn prove(&self, side: Side, greetings: Greetings<'_>) -> [u8; PROOF_BYTES] {
        self.code(side, greetings).finalize().into_bytes().into()
    }

    /// Whether `side` knows the token. Takes as long for one wrong proof as for any other.
    pub(crate) fn accepts(&self, side: Side, greetings: Greetings<'_>, proof: &[u8]) -> bool {
        self.code(side, greetings).verify_slice(proof).is_ok()
    }

    fn code(&self, side: Side, greetings: Greetings<'_>) -> Hmac<Sha256> {
        // Keys of any length are accepted: the only error there is cannot come.
        let mut code = Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| unreachable!());
        code.update(side.name());
        greetings.into_iter().for_each(|greeting| code.update(greeting));
        code
    }
}

/// Says nothing of the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "no token" } else { "a token" })
    }
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_token_one_side_and_one_pair_of_greetings() {
        let (a, b) = ([1; GREETING_BYTES], [2; GREETING_BYTES]);
        let token = Token::new("correct horse");
        let proof = token.prove(Side::Rank, [&a, &b]);
        assert!(token.accepts(Side::Rank, [&a, &b], &proof));
        assert!(!token.accepts(Side::Coordinator, [&a, &b], &proof));
        assert!(!token.accepts(Side::Rank, [&b, &a], &proof));
        assert!(!token.accepts(Side::Rank, [&a, &b], &proof[1..]));
        assert!(!Token::new("correct horsf").accepts(Side::Rank, [&a, &b], &proof));
        assert!(!Token::default().accepts(Side::Rank, [&a, &b], &proof));
        assert_eq!(format!("{token:?}"), "a token");
    }
}
