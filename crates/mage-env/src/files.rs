//! Files that others wrote: folders with links, lines of recordings, archives. What is read of each is bounded.

use crate::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use std::{
    cell::Cell,
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    rc::Rc,
};

/// Maximum length of a line of a recording. Those of official recordings have at most 31 kB.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Folders that a walk has entered, by canonical path.
#[derive(Default)]
pub(crate) struct VisitedFolders(HashMap<PathBuf, PathBuf>);

impl VisitedFolders {
    /// Records a folder. A folder that was entered before, as through a link to a folder above it, is an error.
    pub(crate) fn enter(&mut self, folder: &Path) -> Result<()> {
        let canonical = folder.canonicalize().map_err(|source| Error::Read { path: folder.to_owned(), source })?;
        let Some(first) = self.0.insert(canonical, folder.to_owned()) else { return Ok(()) };
        let problem = format!("the same folder as {}; remove the link that leads to it", first.display());
        Err(Error::invalid(folder.display().to_string(), problem))
    }
}

/// The lines of a recording with their numbers, from 1. The file is plain or gzipped. Empty lines are skipped.
pub(crate) fn recorded_lines(path: &Path) -> Result<impl Iterator<Item = Result<(usize, String)>> + use<>> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let is_gzip = file.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]);
    let reader: Box<dyn BufRead> =
        if is_gzip { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) };
    let path = path.to_owned();
    let lines = numbered_lines(reader, MAX_LINE_BYTES).map(move |(number, line)| {
        let line = line.map_err(|e| Error::invalid(format!("{}, line {number}", path.display()), e.to_string()))?;
        Ok((number, line))
    });
    Ok(lines.filter(|line| line.as_ref().map_or(true, |(_, text)| !text.trim().is_empty())))
}

/// Lines with their numbers. A line of more than `max` bytes is an error, the last item.
fn numbered_lines(mut reader: impl BufRead, max: u64) -> impl Iterator<Item = (usize, io::Result<String>)> {
    let (mut number, mut ended) = (0, false);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        number += 1;
        let read = (&mut reader).take(max + 1).read_until(b'\n', &mut line);
        let line = match read {
            _ if ended => return None,
            Ok(0) => return None,
            Ok(read) if read as u64 > max => Err(io::Error::other(format!("longer than {max} bytes"))),
            Ok(_) => String::from_utf8(line).map_err(io::Error::other),
            Err(e) => Err(e),
        };
        ended = line.is_err();
        Some((number, line))
    })
}

/// A reader that fails beyond a number of bytes, which can be set while others hold the reader.
pub(crate) struct HeaderLimitReader<R> {
    inner: R,
    remaining: Rc<Cell<u64>>,
}

impl<R: Read> HeaderLimitReader<R> {
    /// Without a limit until one is set.
    pub(crate) fn new(inner: R) -> (Self, Rc<Cell<u64>>) {
        let remaining = Rc::new(Cell::new(u64::MAX));
        (HeaderLimitReader { inner, remaining: Rc::clone(&remaining) }, remaining)
    }
}

impl<R: Read> Read for HeaderLimitReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let remaining = self.remaining.get();
        if remaining == 0 && !buffer.is_empty() {
            return Err(io::Error::other("the headers of an entry are too large"));
        }
        let most = buffer.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..most])?;
        self.remaining.set(remaining - read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_bounded() {
        let lines = |text: &'static str| -> Vec<(usize, Option<String>)> {
            numbered_lines(text.as_bytes(), 4).map(|(n, line)| (n, line.ok())).collect()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(lines("abc\n\nab"), [(1, some("abc\n")), (2, some("\n")), (3, some("ab"))]);
        assert_eq!(lines("abcd\nx"), [(1, None)], "five bytes with the line break; nothing follows an error");
        assert_eq!(lines("abcd"), [(1, some("abcd"))]);
        assert_eq!(lines("abcde"), [(1, None)]);
    }

    #[test]
    fn recordings_are_read_plain_and_gzipped() {
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"one\n\ntwo\n").unwrap();
        for (name, bytes) in [("plain", b"one\n\ntwo\n".to_vec()), ("gzip", gzip.finish().unwrap())] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let lines: Vec<_> = recorded_lines(&path).unwrap().map(Result::unwrap).collect();
            assert_eq!(lines, [(1, "one\n".to_owned()), (3, "two\n".to_owned())]);
        }
    }

    #[test]
    fn a_limited_reader_fails_beyond_its_limit() {
        let (mut reader, remaining) = HeaderLimitReader::new(&b"0123456789"[..]);
        let mut four = [0; 4];
        reader.read_exact(&mut four).unwrap();
        remaining.set(4);
        reader.read_exact(&mut four).unwrap();
        assert!(reader.read_exact(&mut four).unwrap_err().to_string().contains("too large"));
        remaining.set(u64::MAX);
        assert_eq!(reader.read(&mut four).unwrap(), 2);
    }
}
