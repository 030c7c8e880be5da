//! The one hash by which ranks agree and a compiled image is matched with its Program.

use crate::order::Order;
use crate::program::Program;

/// FNV-1a, 64 bits. Stable over versions, targets and processes, which a standard library hasher
/// does not promise.
pub fn of_bytes(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The hash of what machine code depends on: the Program's text with every tile order set to one,
/// as orders are tables that the code reads.
pub fn of_program(program: &Program) -> u64 {
    let mut program = program.clone();
    let tables: Vec<_> = program.tables.handles().collect();
    for table in tables {
        program.tables[table].order = Order::RowMajor;
    }
    of_bytes(program.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::of_bytes;

    #[test]
    fn known_answers_of_fnv_1a() {
        assert_eq!(of_bytes([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of_bytes(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of_bytes(*b"foobar"), 0x8594_4171_f739_67e8);
    }
}
