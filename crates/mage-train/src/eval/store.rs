//! Store of evaluation trajectories.
//!
//! An append-only file of JSON lines. A trajectory is stored once its line is complete, including the line break. A
//! crash during a write leaves at most a partial last line, which is dropped and reported when the file is opened
//! again. Trajectories are identified by their [`TrajectoryKey`], so that finished work is not repeated. A trajectory
//! with an error is kept, but its task is played again.
//!
//! ```
//! use mage_train::eval::store::{TrajectoryStore, read_trajectories};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("trajectories.jsonl");
//! let store = TrajectoryStore::open(&path)?; // created if missing, and locked against other processes
//! assert_eq!(store.len(), 0);
//! for trajectory in read_trajectories(&path)? {
//!     println!("{}", trajectory?.task.hash());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::{Error, Result};
use mage_core::{Trajectory, TrajectoryKey};
use std::{
    collections::HashSet,
    fs::{File, OpenOptions, TryLockError},
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// An open store with an exclusive lock on its file.
#[derive(Debug)]
pub struct TrajectoryStore {
    path: PathBuf,
    file: File,
    /// Keys of finished trajectories.
    keys: HashSet<TrajectoryKey>,
    /// End of the last complete line.
    length: u64,
    repaired: u64,
}

/// Prefix of every line. A file with another beginning is not a store and is never modified.
pub const LINE_PREFIX: &[u8] = b"{\"key\":";

/// Maximum length of a line. Texts of endpoints are limited to a few MB each.
const MAX_LINE_BYTES: u64 = 256 << 20;

impl TrajectoryStore {
    /// Opens or creates the file, reads its keys, and drops a partial last line.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(e)) => return Err(io(e)),
        }
        let mut keys = HashSet::new();
        let mut complete = 0;
        let mut lines = TrajectoryLines::new(path, &file);
        while let Some(trajectory) = lines.next_trajectory() {
            let trajectory = trajectory?;
            if trajectory.error.is_none() {
                keys.insert(trajectory.key);
            }
            complete = lines.end;
        }
        let (tail, line) = (lines.tail, lines.number + 1);
        if !tail.is_empty() {
            let is_partial = tail.iter().zip(LINE_PREFIX).all(|(a, b)| a == b);
            if !is_partial {
                let problem = "not the beginning of a trajectory; check that this is the right file".to_owned();
                return Err(Error::Line { path: path.to_owned(), line, problem });
            }
            file.set_len(complete).map_err(io)?;
            file.sync_data().map_err(io)?;
        }
        file.seek(SeekFrom::End(0)).map_err(io)?;
        Ok(TrajectoryStore { path: path.to_owned(), file, keys, length: complete, repaired: tail.len() as u64 })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of finished trajectories.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no finished trajectories.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of a partial line that were dropped on opening.
    pub fn repaired_bytes(&self) -> u64 {
        self.repaired
    }

    /// Whether there is a finished trajectory with this key.
    pub fn contains(&self, key: &TrajectoryKey) -> bool {
        self.keys.contains(key)
    }

    /// Appends trajectories and returns their number once they are synced to disk. Finished keys are skipped. If the write fails
    /// (for example on a full disk), the file is restored.
    pub fn append<'r>(&mut self, trajectories: impl IntoIterator<Item = &'r Trajectory>) -> Result<usize> {
        let mut lines = String::new();
        let (mut added, mut count) = (HashSet::new(), 0);
        for trajectory in trajectories {
            let finished = self.keys.contains(&trajectory.key) || added.contains(&trajectory.key);
            if finished {
                continue;
            }
            if trajectory.error.is_none() {
                added.insert(trajectory.key.clone());
            }
            lines.push_str(&trajectory.to_json_line());
            lines.push('\n');
            count += 1;
        }
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            // A partial line inside the file would be damage. If truncation fails too, the next opening drops the line.
            let _ = self.file.set_len(self.length);
            return Err(Error::Io { path: self.path.clone(), source });
        }
        self.length += lines.len() as u64;
        self.keys.extend(added);
        Ok(count)
    }
}

/// Reads the trajectories of a store one by one without locking it. A partial last line is skipped; damage elsewhere is an
/// error that names the line.
pub fn read_trajectories(path: &Path) -> Result<impl Iterator<Item = Result<Trajectory>> + use<>> {
    let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let mut lines = TrajectoryLines::new(path, file);
    Ok(std::iter::from_fn(move || lines.next_trajectory()))
}

/// Reader of complete lines that tracks the end of the last valid one.
struct TrajectoryLines<F> {
    path: PathBuf,
    reader: BufReader<F>,
    number: u64,
    end: u64,
    /// Bytes after the last line break.
    tail: Vec<u8>,
    max_line: u64,
}

impl<F: Read> TrajectoryLines<F> {
    fn new(path: &Path, file: F) -> Self {
        let (path, reader) = (path.to_owned(), BufReader::new(file));
        TrajectoryLines { path, reader, number: 0, end: 0, tail: Vec::new(), max_line: MAX_LINE_BYTES }
    }

    /// Skips the rest of a line of which this was read.
    fn skip_line(&mut self, read: &[u8]) -> Result<()> {
        self.end += read.len() as u64;
        if read.last() != Some(&b'\n') {
            let skipped = self.reader.skip_until(b'\n').map_err(Error::io(&self.path))?;
            self.end += skipped as u64;
        }
        Ok(())
    }

    fn next_trajectory(&mut self) -> Option<Result<Trajectory>> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(self.max_line + 1).read_until(b'\n', &mut line);
        match read {
            Err(source) => return Some(Err(Error::Io { path: self.path.clone(), source })),
            Ok(read) if read as u64 > self.max_line => {
                self.number += 1;
                let problem = format!("longer than {} bytes", self.max_line);
                let too_long = Error::Line { path: self.path.clone(), line: self.number, problem };
                return Some(Err(self.skip_line(&line).err().unwrap_or(too_long)));
            }
            Ok(_) if line.last() != Some(&b'\n') => {
                self.tail = line;
                return None;
            }
            Ok(read) => self.end += read as u64,
        }
        self.number += 1;
        let trajectory = str::from_utf8(&line)
            .map_err(|e| e.to_string())
            .and_then(|text| Trajectory::from_json_line(text).map_err(|e| e.to_string()));
        Some(trajectory.map_err(|problem| Error::Line { path: self.path.clone(), line: self.number, problem }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped_with_an_error() {
        let text = format!("{}\n{{}}\n", "x".repeat(40));
        let mut lines = TrajectoryLines { max_line: 16, ..TrajectoryLines::new(Path::new("file"), text.as_bytes()) };
        let mut error = || lines.next_trajectory().unwrap().unwrap_err().to_string();
        assert!(error().contains("line 1") && error().contains("line 2"));
        assert!(lines.next_trajectory().is_none() && lines.tail.is_empty());
        assert_eq!(lines.end, text.len() as u64);
    }
}
