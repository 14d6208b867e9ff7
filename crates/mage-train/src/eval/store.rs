//! Where are finished meta-episodes kept?
//!
//! In one append-only file of JSON lines. A record is there when its line is there, line break included. A crash in the
//! middle of a write leaves half a line at the end at worst; opening the file again drops it, says so, and everything
//! before it is intact. Records are found by their [`TrajectoryKey`], so finished work is never done twice. A record with an error
//! is no finished work: it is kept, and makes room for another attempt.
//!
//! ```
//! use mage_train::eval::store::{TrajectoryStore, read_trajectories};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("records.jsonl");
//! let store = TrajectoryStore::open(&path)?; // made if it is not there; no second process can write it meanwhile
//! assert_eq!(store.len(), 0);
//! for record in read_trajectories(&path)? {
//!     println!("{}", record?.task.hash());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::{Error, Result};
use mage_core::{Trajectory, TrajectoryKey};
use std::{
    collections::HashSet,
    fs::{File, OpenOptions, TryLockError},
    io::{BufRead, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// An open store: the only one that writes its file.
#[derive(Debug)]
pub struct TrajectoryStore {
    path: PathBuf,
    file: File,
    /// Of what is finished.
    keys: HashSet<TrajectoryKey>,
    /// Where the last whole line ends.
    length: u64,
    repaired: u64,
}

/// How every record's line begins. What does not is somebody else's text, and is never touched.
pub const OPENING: &[u8] = b"{\"key\":";

impl TrajectoryStore {
    /// Opens or makes the file, reads its keys, and drops half a line left by a crash.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(e)) => return Err(io(e)),
        }
        let mut keys = HashSet::new();
        let mut whole = 0;
        let mut lines = TrajectoryLines::new(path, &file);
        while let Some(record) = lines.next_record() {
            let record = record?;
            if record.error.is_none() {
                keys.insert(record.key);
            }
            whole = lines.end;
        }
        let (tail, line) = (lines.tail, lines.number + 1);
        if !tail.is_empty() {
            let begun = tail.iter().zip(OPENING).all(|(a, b)| a == b);
            if !begun {
                let problem = "not the beginning of a record: is this the right file?".to_owned();
                return Err(Error::Line { path: path.to_owned(), line, problem });
            }
            file.set_len(whole).map_err(io)?;
            file.sync_data().map_err(io)?;
        }
        file.seek(SeekFrom::End(0)).map_err(io)?;
        Ok(TrajectoryStore { path: path.to_owned(), file, keys, length: whole, repaired: tail.len() as u64 })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many finished records there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many bytes of an unfinished line were dropped when the file was opened.
    pub fn repaired_bytes(&self) -> u64 {
        self.repaired
    }

    /// Whether a finished record with this key is there.
    pub fn contains(&self, key: &TrajectoryKey) -> bool {
        self.keys.contains(key)
    }

    /// Adds records, and returns how many once they are on the disk. Those whose key is there already are left out. If they
    /// cannot be written (a full disk, say), the file is as it was before.
    pub fn append<'r>(&mut self, records: impl IntoIterator<Item = &'r Trajectory>) -> Result<usize> {
        let mut lines = String::new();
        let (mut added, mut count) = (HashSet::new(), 0);
        for record in records {
            let known = self.keys.contains(&record.key) || added.contains(&record.key);
            if known {
                continue;
            }
            if record.error.is_none() {
                added.insert(record.key.clone());
            }
            lines.push_str(&record.to_json_line());
            lines.push('\n');
            count += 1;
        }
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            // Half a line in the middle would be damage; if even this fails, opening the file again mends it.
            let _ = self.file.set_len(self.length);
            return Err(Error::Io { path: self.path.clone(), source });
        }
        self.length += lines.len() as u64;
        self.keys.extend(added);
        Ok(count)
    }
}

/// Reads a store's records one by one, without locking it. Half a line at the end is passed over; damage anywhere else
/// is an error that names the line.
pub fn read_trajectories(path: &Path) -> Result<impl Iterator<Item = Result<Trajectory>> + use<>> {
    let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let mut lines = TrajectoryLines::new(path, file);
    Ok(std::iter::from_fn(move || lines.next_record()))
}

/// Complete lines of a file, with the place where the last good one ended.
struct TrajectoryLines<F> {
    path: PathBuf,
    reader: BufReader<F>,
    number: u64,
    end: u64,
    /// What stands after the last line break.
    tail: Vec<u8>,
}

impl<F: std::io::Read> TrajectoryLines<F> {
    fn new(path: &Path, file: F) -> Self {
        TrajectoryLines { path: path.to_owned(), reader: BufReader::new(file), number: 0, end: 0, tail: Vec::new() }
    }

    fn next_record(&mut self) -> Option<Result<Trajectory>> {
        let mut line = Vec::new();
        match self.reader.read_until(b'\n', &mut line) {
            Err(source) => return Some(Err(Error::Io { path: self.path.clone(), source })),
            Ok(_) if line.last() != Some(&b'\n') => {
                self.tail = line;
                return None;
            }
            Ok(read) => self.end += read as u64,
        }
        self.number += 1;
        let record = str::from_utf8(&line)
            .map_err(|e| e.to_string())
            .and_then(|text| Trajectory::from_json_line(text).map_err(|e| e.to_string()));
        Some(record.map_err(|problem| Error::Line { path: self.path.clone(), line: self.number, problem }))
    }
}
