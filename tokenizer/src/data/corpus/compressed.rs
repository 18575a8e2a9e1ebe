//! Decompresses input while reading: any number of gzip members or Zstandard frames.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

use crate::{error::Error, regular};

/// A file's compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// `.gz`.
    Gzip,
    /// `.zst`, with windows of up to 128 MiB.
    Zstd,
}

const BUFFER: usize = 1 << 18;

impl Compression {
    pub(super) fn detect(beginning: &[u8]) -> Option<Self> {
        match beginning {
            [0x1F, 0x8B, ..] => Some(Self::Gzip),
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Some(Self::Zstd),
            _ => None,
        }
    }
}

pub(super) fn open(path: &Path, compression: Option<Compression>) -> Result<Box<dyn Read + Send>, Error> {
    let file = BufReader::with_capacity(BUFFER, regular::open(path)?);
    Ok(match compression {
        None => Box::new(file),
        Some(Compression::Gzip) => Box::new(MultiGzDecoder::new(file)),
        Some(Compression::Zstd) => Box::new(ZstdFrames::new(file)),
    })
}

/// Reads everything to measure the size: stated sizes are unreliable.
pub(super) fn measure(path: &Path, compression: Compression) -> Result<u64, Error> {
    io::copy(&mut open(path, Some(compression))?, &mut io::sink()).map_err(Error::read(path))
}

struct ZstdFrames {
    source: BufReader<File>,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl ZstdFrames {
    fn new(source: BufReader<File>) -> Self {
        Self { source, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// `false` at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(invalid(error)),
            }
        }
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let (stated, found) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        match (stated, found) {
            (Some(stated), Some(found)) if stated != found => {
                Err(invalid("a Zstandard frame does not have the checksum it states"))
            }
            _ => Ok(()),
        }
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                self.in_frame = self.begin_frame()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(invalid)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.end_frame()?;
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
