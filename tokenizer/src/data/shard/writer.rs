//! Writes one split's shards. Each is complete before it is named.

use std::{
    fs::File,
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{Content, Header, ShardEntry, SideEntry, SplitEntry, Starts};
use crate::{error::Error, fingerprint::Fingerprint};

/// Hashed and written in the core's cache.
const BUFFER: usize = 1 << 18;

/// Bytes. A shard's last sync blocks later work; earlier ones overlap with encoding.
const SYNC_INTERVAL: usize = 8 << 20;

#[derive(Debug)]
pub(crate) struct SplitWriter {
    folder: PathBuf,
    name: &'static str,
    content: Content,
    tokenizer: [u8; 8],
    shard_tokens: u64,
    open: Option<OpenShard>,
    begins: bool,
    done: SplitEntry,
}

#[derive(Debug)]
struct OpenShard {
    tokens: Payload,
    mask: Option<Payload>,
    starts: Payload,
    documents: u64,
}

#[derive(Debug)]
struct Payload {
    path: PathBuf,
    file: File,
    digest: Sha256,
    count: u64,
    bytes: Vec<u8>,
    unsynced: usize,
}

impl SplitWriter {
    pub(crate) fn new(
        folder: &Path,
        name: &'static str,
        content: Content,
        tokenizer: [u8; 8],
        shard_tokens: u64,
    ) -> Self {
        let (folder, done) = (folder.to_owned(), SplitEntry::default());
        Self { folder, name, content, tokenizer, shard_tokens, open: None, begins: false, done }
    }

    pub(crate) fn begin_document(&mut self) {
        self.begins = true;
    }

    /// Appends tokens (see [`Content::encode`]) of `bytes` bytes of text, with later `questions` at these places.
    /// Starts another shard when one is full.
    pub(crate) fn push(
        &mut self,
        mut tokens: &[u8],
        mut trained: Option<&[bool]>,
        questions: &[usize],
        bytes: u64,
    ) -> Result<(), Error> {
        self.done.bytes += bytes;
        let width = self.content.bytes() as usize;
        let mut questions = questions.iter().copied().peekable();
        let mut done = 0;
        while !tokens.is_empty() {
            let shard = match &mut self.open {
                Some(shard) => shard,
                None => self.open.insert(OpenShard::create(
                    &self.folder.join(format!("{}-{:05}", self.name, self.done.shards.len())),
                    trained.is_some(),
                )?),
            };

            let fits = (tokens.len() / width).min((self.shard_tokens - shard.tokens.count) as usize);
            let (now, later) = tokens.split_at(fits * width);
            let before = shard.tokens.count;
            if std::mem::take(&mut self.begins) {
                shard.documents += 1;
                shard.start(Starts::document(before))?;
            }
            while let Some(at) = questions.next_if(|at| *at < done + fits) {
                shard.start(Starts::question(before + (at - done) as u64))?;
            }
            done += fits;
            shard.tokens.push(fits, |bytes| bytes.extend_from_slice(now))?;
            if let (Some(flags), Some(mask)) = (&mut trained, &mut shard.mask) {
                let (now, later) = flags.split_at(fits);
                mask.push(fits, |bytes| bytes.extend(now.iter().map(|flag| u8::from(*flag))))?;
                *flags = later;
            }

            tokens = later;
            if shard.tokens.count == self.shard_tokens {
                self.close()?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<SplitEntry, Error> {
        self.close()?;
        Ok(self.done)
    }

    fn close(&mut self) -> Result<(), Error> {
        let Some(OpenShard { tokens, mask, starts, documents }) = self.open.take() else { return Ok(()) };
        let count = tokens.count;
        let (file, sha256) = tokens.close(self.content, self.tokenizer)?;
        let mask = mask.map(|mask| mask.close(Content::Mask, self.tokenizer)).transpose()?;
        let mask = mask.map(|(file, sha256)| SideEntry { file, sha256 });
        let starts = starts.close(Content::Starts, self.tokenizer)?;
        let starts = Some(SideEntry { file: starts.0, sha256: starts.1 });
        self.done.tokens += count;
        self.done.documents += documents;
        self.done.shards.push(ShardEntry { file, tokens: count, documents, sha256, mask, starts });
        Ok(())
    }
}

impl OpenShard {
    fn create(stem: &Path, masked: bool) -> Result<Self, Error> {
        let mask = masked.then(|| Payload::create(stem.with_extension("mask"))).transpose()?;
        let starts = Payload::create(stem.with_extension("starts"))?;
        Ok(Self { tokens: Payload::create(stem.with_extension("bin"))?, mask, starts, documents: 0 })
    }

    fn start(&mut self, start: u32) -> Result<(), Error> {
        self.starts.push(1, |bytes| bytes.extend_from_slice(&start.to_le_bytes()))
    }
}

impl Payload {
    fn create(path: PathBuf) -> Result<Self, Error> {
        let file = File::create(durable::aside(&path)).map_err(Error::write(&path))?;
        let mut payload =
            Self { path, file, digest: Sha256::new(), count: 0, bytes: Vec::new(), unsynced: 0 };
        payload.write(&[0; Header::BYTES])?;
        Ok(payload)
    }

    fn push(&mut self, count: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), Error> {
        fill(&mut self.bytes);
        self.count += count as u64;
        if self.bytes.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.digest.update(&self.bytes);
        let bytes = std::mem::take(&mut self.bytes);
        self.write(&bytes)?;
        self.unsynced += bytes.len();
        self.bytes = bytes;
        self.bytes.clear();
        if self.unsynced >= SYNC_INTERVAL {
            self.unsynced = 0;
            self.file.sync_data().map_err(Error::write(&self.path))?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::write(&self.path))
    }

    fn close(mut self, content: Content, tokenizer: [u8; 8]) -> Result<(String, Fingerprint), Error> {
        self.flush()?;
        let header = Header { content, tokens: self.count as u32, tokenizer };
        self.file.seek(SeekFrom::Start(0)).map_err(Error::write(&self.path))?;
        self.write(&header.to_bytes())?;
        self.file.sync_all().map_err(Error::write(&self.path))?;
        durable::rename(&durable::aside(&self.path), &self.path).map_err(Error::write(&self.path))?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, Fingerprint::finish(self.digest)))
    }
}
