//! GPT-2's printable alphabet for byte-level tokens in JSON. Printable bytes stand for themselves; the other 68 map to
//! U+0100 and up.

const fn prints(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut next = 0x100u32;
    let mut byte = 0;
    while byte < 256 {
        chars[byte] = if prints(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => panic!("U+0100..U+0143 are all assigned"),
            }
        };
        byte += 1;
    }
    chars
};

const END: usize = 0x144;

const BYTES: [Option<u8>; END] = {
    let mut bytes = [None; END];
    let mut byte = 0;
    while byte < 256 {
        bytes[CHARS[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    bytes
};

pub(crate) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

pub(crate) fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char_of(byte)).collect()
}

pub(crate) fn unspell(token: &str) -> Option<Box<[u8]>> {
    token.chars().map(|c| BYTES.get(c as usize).copied().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_visible_character() {
        let all: Vec<u8> = (0..=255).collect();
        let spelled = spell(&all);
        assert!(spelled.chars().all(|c| !c.is_control() && !c.is_whitespace()));
        assert_eq!(unspell(&spelled).as_deref(), Some(all.as_slice()));
    }

    #[test]
    fn space_and_newline_are_written_as_gpt2_writes_them() {
        assert_eq!(spell(b" \n"), "ĠĊ");
    }
}
