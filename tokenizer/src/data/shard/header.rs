//! A shard's header: 256 little-endian 32-bit integers. Other programs read magic, version and number of tokens. Two
//! with the tokenizer's mark, or zeros, follow.

use super::ShardProblem;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// 16-bit, as llm.c's GPT-2 shards.
    Narrow,
    /// 32-bit, as llm.c's Llama 3 shards.
    Wide,
    /// A byte per token: 1 for targets.
    Mask,
    /// 32-bit positions: see [`super::Starts`].
    Starts,
}

const TOKEN_MAGICS: &str = "20240520 (16-bit tokens) or 20240801 (32-bit tokens), as in llm.c's shards";

impl Content {
    pub(crate) fn for_vocabulary(size: u32) -> Self {
        if size <= 1 << 16 { Self::Narrow } else { Self::Wide }
    }

    fn magic_and_version(self) -> (i32, i32) {
        match self {
            Self::Narrow => (20_240_520, 1),
            Self::Wide => (20_240_801, 7),
            Self::Mask => (20_261_121, 1),
            Self::Starts => (20_261_128, 1),
        }
    }

    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Narrow => 2,
            Self::Wide | Self::Starts => 4,
            Self::Mask => 1,
        }
    }

    /// Bytes of any `first` and `ids` within the vocabulary.
    pub(crate) fn encode(self, first: Option<u32>, ids: &[u32]) -> Vec<u8> {
        fn all<const N: usize>(first: Option<u32>, ids: &[u32], encode: impl Fn(u32) -> [u8; N]) -> Vec<u8> {
            let mut bytes = Vec::with_capacity((first.iter().len() + ids.len()) * N);
            bytes.extend(first.iter().flat_map(|id| encode(*id)));
            let start = bytes.len();
            bytes.resize(start + ids.len() * N, 0);
            for (place, id) in bytes[start..].as_chunks_mut().0.iter_mut().zip(ids) {
                *place = encode(*id);
            }
            bytes
        }
        match self {
            Self::Narrow => all(first, ids, |id| (id as u16).to_le_bytes()),
            Self::Wide | Self::Starts => all(first, ids, u32::to_le_bytes),
            Self::Mask => all(first, ids, |id| [id as u8]),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardFile {
    Tokens,
    Mask,
    Starts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) content: Content,
    pub(crate) tokens: u32,
    /// Zeros if unknown.
    pub(crate) tokenizer: [u8; 8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Prepared,
    OtherProgram,
}

impl Header {
    pub(crate) const BYTES: usize = 1024;
    /// The field is signed.
    pub(crate) const MAX_TOKENS: u64 = i32::MAX as u64;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (magic, version) = self.content.magic_and_version();
        bytes[0..4].copy_from_slice(&magic.to_le_bytes());
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.tokenizer);
        bytes
    }

    pub(crate) fn origin(bytes: &[u8]) -> Option<Origin> {
        let magic = i32::from_le_bytes(*bytes.first_chunk()?);
        let known = [Content::Narrow, Content::Wide].map(|content| content.magic_and_version().0);
        let marked = bytes.get(12..20).is_some_and(|mark| mark != [0; 8]);
        known.contains(&magic).then_some(if marked { Origin::Prepared } else { Origin::OtherProgram })
    }

    pub(crate) fn parse(bytes: &[u8], found: u64, file: ShardFile) -> Result<Self, ShardProblem> {
        let bytes = bytes.get(..Self::BYTES).ok_or(ShardProblem::NoHeader { found })?;
        let word = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);

        let (known, expected): (&[Content], _) = match file {
            ShardFile::Tokens => (&[Content::Narrow, Content::Wide], TOKEN_MAGICS),
            ShardFile::Mask => (&[Content::Mask], "20261121 (a loss mask)"),
            ShardFile::Starts => (&[Content::Starts], "20261128 (beginnings of documents)"),
        };
        let content = known.iter().copied().find(|content| content.magic_and_version().0 == word(0));
        let content = content.ok_or(ShardProblem::Magic { found: word(0), expected })?;

        let version = content.magic_and_version().1;
        if word(4) != version {
            return Err(ShardProblem::Version { found: word(4), expected: version });
        }

        let tokens = word(8) as u32;
        let mut tokenizer = [0; 8];
        tokenizer.copy_from_slice(&bytes[12..20]);

        let expected = Self::BYTES as u64 + u64::from(tokens) * content.bytes();
        if u64::from(tokens) > Self::MAX_TOKENS || expected != found {
            return Err(ShardProblem::Size { tokens: tokens.into(), expected, found });
        }
        Ok(Self { content, tokens, tokenizer })
    }
}
