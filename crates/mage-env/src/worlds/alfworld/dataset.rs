//! Official games, from a directory or archives.
//!
//! The directory has ALFWorld's layout (`json_2.1.1/<split>/…/game.tw-pddl`), or contains archives of that layout (`.tar`,
//! `.tar.xz`, `.tar.zst`), which are read without unpacking. Games are sorted by path, since directory order is arbitrary.

use super::{export::OfficialRules, game_file::AlfworldGame, goal::TaskType, world::HouseholdWorld};
use crate::{
    Error, Result,
    files::{HeaderLimitReader, VisitedFolders},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{BufReader, Read},
    ops::ControlFlow,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// The directory that contains the splits.
const DATA_ROOT: &str = "json_2.1.1";
/// Name of a game file.
const GAME_FILE: &str = "game.tw-pddl";
/// Names of the official splits.
pub const OFFICIAL_SPLITS: [&str; 4] = ["train", "valid_seen", "valid_unseen", "valid_train"];
/// Maximum size of a game file. Official files have at most 250 kB.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Maximum size of an archive's headers of an entry, which contain its path.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Maximum zstd window: the official archive uses 128 MiB.
const ZSTD_MAX_WINDOW: u64 = 128 << 20;

/// Resolves the data directory: `path` if given, else `alfworld` in `MAGE_DATA` (default `data`), else `ALFWORLD_DATA`.
pub fn find_data(path: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let mage = std::env::var_os("MAGE_DATA").map_or_else(|| PathBuf::from("data"), PathBuf::from).join("alfworld");
    let alfworld = std::env::var_os("ALFWORLD_DATA").map(PathBuf::from);
    [Some(mage.clone()), alfworld].into_iter().flatten().find(|p| p.is_dir()).ok_or_else(|| {
        let problem = format!(
            "directory not found: set the option data, or MAGE_DATA to the directory that contains alfworld/, or \
             ALFWORLD_DATA to ALFWorld's data directory; {} does not exist",
            mage.display()
        );
        Error::MissingData { data: "official games of alfworld", problem }
    })
}

/// A directory of official games.
pub struct GameDataset {
    root: PathBuf,
    format: DatasetFormat,
    splits: Mutex<BTreeMap<String, Arc<GameSplit>>>,
}

enum DatasetFormat {
    /// The directory that contains the splits.
    Directory(PathBuf),
    Archives(Vec<PathBuf>),
}

/// The games of a split, sorted by path.
#[derive(Default)]
pub struct GameSplit {
    games: Vec<GameEntry>,
    unreadable: OnceLock<BTreeMap<usize, String>>,
}

/// One game of a split.
pub struct GameEntry {
    name: String,
    file: Option<PathBuf>,
    world: OnceLock<std::result::Result<Arc<HouseholdWorld>, String>>,
}

impl GameEntry {
    /// Its name: the path below the data directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The compiled game, read at the first call and then shared.
    pub fn world(&self) -> Result<Arc<HouseholdWorld>> {
        let read = || {
            let file = self.file.as_deref().expect("archived games are read with their archive");
            read_file(file).and_then(|bytes| world(&bytes, &file.display().to_string())).map_err(|e| e.to_string())
        };
        let world = self.world.get_or_init(read);
        world.clone().map_err(|problem| Error::invalid("official games of alfworld", problem))
    }

    /// The task type, from the directory name if possible.
    fn task_type(&self) -> Result<TaskType> {
        let from_directory = |part: &str| TaskType::ALL.into_iter().find(|k| part.starts_with(k.folder()));
        match self.name.split('/').find_map(from_directory) {
            Some(kind) => Ok(kind),
            None => self.world().map(|w| w.goal().kind),
        }
    }
}

impl GameSplit {
    /// Number of games.
    pub fn len(&self) -> usize {
        self.games.len()
    }

    /// Whether there are no games.
    pub fn is_empty(&self) -> bool {
        self.games.is_empty()
    }

    /// All games, sorted by path.
    pub fn games(&self) -> &[GameEntry] {
        &self.games
    }

    /// The game with this name.
    pub fn get(&self, name: &str) -> Result<&GameEntry> {
        let found = self.games.binary_search_by(|g| g.name.as_str().cmp(name));
        found.map(|i| &self.games[i]).map_err(|_| Error::invalid(name, "no such game in the split"))
    }

    /// Indices of the games of these task types (of all types if empty), in ascending order.
    pub fn select(&self, kinds: &[TaskType], skip_bad: bool) -> Result<Vec<usize>> {
        let wanted = |i: usize| Ok(kinds.is_empty() || kinds.contains(&self.games[i].task_type()?));
        let good = (0..self.games.len()).filter(|i| !skip_bad || !self.unreadable().contains_key(i));
        good.filter_map(|i| wanted(i).map(|w| w.then_some(i)).transpose()).collect()
    }

    /// The games that cannot be read, with the error. Reads all games at the first call.
    pub fn unreadable(&self) -> &BTreeMap<usize, String> {
        let problem = |g: &GameEntry| g.world().err().map(|e| e.to_string());
        let all = || self.games.iter().enumerate();
        self.unreadable.get_or_init(|| all().filter_map(|(i, g)| problem(g).map(|p| (i, p))).collect())
    }
}

impl GameDataset {
    /// Opens a data directory.
    pub fn open(root: &Path) -> Result<Self> {
        let holds_splits = |p: &Path| OFFICIAL_SPLITS.iter().any(|s| p.join(s).is_dir());
        let format = match [root.join(DATA_ROOT), root.to_owned()].into_iter().find(|p| holds_splits(p)) {
            Some(tree) => DatasetFormat::Directory(tree),
            None => DatasetFormat::Archives(archives(root)?),
        };
        Ok(GameDataset { root: root.to_owned(), format, splits: Mutex::default() })
    }

    /// The games of a split.
    pub fn split(&self, split: &str) -> Result<Arc<GameSplit>> {
        let mut loaded = self.splits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = loaded.get(split) {
            return Ok(Arc::clone(found));
        }
        match &self.format {
            DatasetFormat::Directory(tree) => {
                let mut files = Vec::new();
                let name = format!("{DATA_ROOT}/{split}");
                walk(&tree.join(split), &name, &mut files, &mut VisitedFolders::default())?;
                files.sort();
                let entry = |(name, file)| GameEntry { name, file: Some(file), world: OnceLock::new() };
                loaded.insert(
                    split.to_owned(),
                    Arc::new(GameSplit { games: files.into_iter().map(entry).collect(), ..GameSplit::default() }),
                );
            }
            DatasetFormat::Archives(archives) => {
                for archive in archives {
                    if loaded.contains_key(split) {
                        break;
                    }
                    read_splits(archive, &mut loaded)?;
                }
            }
        }
        let found = loaded.get(split).filter(|s| !s.is_empty()).cloned();
        found.ok_or_else(|| {
            let splits = OFFICIAL_SPLITS.join(", ");
            let problem = format!("no games of split `{split}`; the official splits are {splits}");
            Error::invalid(self.root.display().to_string(), problem)
        })
    }

    /// Calls `each` with the name and content of every game file until it returns `Break`.
    pub fn visit(&self, mut each: impl FnMut(&str, &[u8]) -> Result<ControlFlow<()>>) -> Result<()> {
        match &self.format {
            DatasetFormat::Directory(tree) => {
                let mut files = Vec::new();
                walk(tree, DATA_ROOT, &mut files, &mut VisitedFolders::default())?;
                files.sort();
                for (name, file) in files {
                    if each(&name, &read_file(&file)?)?.is_break() {
                        break;
                    }
                }
            }
            DatasetFormat::Archives(archives) => {
                for archive in archives {
                    if visit_archive(archive, &mut each)?.is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The original's rules, from the first game file.
    pub(super) fn rules(&self) -> Result<OfficialRules> {
        let mut found = None;
        self.visit(|name, bytes| {
            found = Some(OfficialRules::from_game(bytes, name)?);
            Ok(ControlFlow::Break(()))
        })?;
        let none = || Error::invalid(self.root.display().to_string(), "no game file from which to read the rules");
        found.ok_or_else(none)
    }

    /// The games with these names.
    pub(super) fn worlds<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<HashMap<String, Arc<HouseholdWorld>>> {
        let mut found = HashMap::new();
        let mut missing: BTreeSet<&str> = names.collect();
        if let DatasetFormat::Directory(tree) = &self.format {
            for name in missing {
                // Names include the root directory, but `tree` may be the root itself.
                let inside = Path::new(name).strip_prefix(DATA_ROOT).unwrap_or(Path::new(name));
                if !inside.components().all(|part| matches!(part, Component::Normal(_))) {
                    return Err(Error::invalid(name, "not a path below the data directory"));
                }
                let file = tree.join(inside);
                found.insert(name.to_owned(), world(&read_file(&file)?, &file.display().to_string())?);
            }
            return Ok(found);
        }
        self.visit(|name, bytes| {
            if missing.remove(name) {
                found.insert(name.to_owned(), world(bytes, name)?);
            }
            Ok(if missing.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        match missing.first() {
            Some(name) => Err(Error::invalid(*name, format!("not found in the archives of {}", self.root.display()))),
            None => Ok(found),
        }
    }
}

fn world(bytes: &[u8], origin: &str) -> Result<Arc<HouseholdWorld>> {
    AlfworldGame::read(bytes, origin).map(|g| Arc::new(HouseholdWorld::new(&g.household)))
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::invalid(
            path.display().to_string(),
            format!("larger than {MAX_FILE_BYTES} bytes, which no game file is"),
        ));
    }
    Ok(bytes)
}

/// Whether the reference excludes the game because of its path.
fn is_excluded(name: &str) -> bool {
    name.contains("movable") || name.contains("Sliced")
}

fn walk(folder: &Path, name: &str, files: &mut Vec<(String, PathBuf)>, visited: &mut VisitedFolders) -> Result<()> {
    visited.enter(folder)?;
    let failed = |source| Error::Read { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let below = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            walk(&entry.path(), &below, files, visited)?;
        } else if entry.file_name() == GAME_FILE && !is_excluded(&below) {
            files.push((below, entry.path()));
        }
    }
    Ok(())
}

/// The archives in a directory, or the given archive, smallest first.
fn archives(root: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Read { path: root.to_owned(), source };
    let packed = |p: &Path| [".tar", ".tar.xz", ".tar.zst"].iter().any(|e| p.to_string_lossy().ends_with(e));
    let mut found = Vec::new();
    if root.is_file() && packed(root) {
        found.push((0, root.to_owned()));
    } else {
        for entry in std::fs::read_dir(root).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if packed(&path) {
                found.push((path.metadata().map_err(failed)?.len(), path));
            }
        }
    }
    if found.is_empty() {
        let problem =
            format!("contains neither {DATA_ROOT}/<split>/…/{GAME_FILE} nor .tar, .tar.xz or .tar.zst archives of it");
        return Err(Error::invalid(root.display().to_string(), problem));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Reads a whole archive once and adds every split in it.
fn read_splits(archive: &Path, loaded: &mut BTreeMap<String, Arc<GameSplit>>) -> Result<()> {
    let mut read: BTreeMap<String, GameSplit> = BTreeMap::new();
    let mut add_entry = |name: &str, bytes: &[u8]| {
        let Some(split) = name.split('/').nth(1) else { return Ok(ControlFlow::Continue(())) };
        let origin = format!("{}: {name}", archive.display());
        let entry = GameEntry { name: name.to_owned(), file: None, world: OnceLock::new() };
        entry.world.get_or_init(|| world(bytes, &origin).map_err(|e| e.to_string()));
        read.entry(split.to_owned()).or_default().games.push(entry);
        Ok(ControlFlow::Continue(()))
    };
    visit_archive(archive, &mut add_entry).map(|_| ())?;
    for (name, mut split) in read {
        split.games.sort_by(|a, b| a.name.cmp(&b.name));
        loaded.entry(name).or_insert_with(|| Arc::new(split));
    }
    Ok(())
}

/// Called with the name and content of a game file; returns whether to continue.
type GameVisitor<'v> = &'v mut dyn FnMut(&str, &[u8]) -> Result<ControlFlow<()>>;

fn visit_archive(archive: &Path, each: GameVisitor<'_>) -> Result<ControlFlow<()>> {
    let failed = |source| Error::Read { path: archive.to_owned(), source };
    let broken = |e: String| Error::invalid(archive.display().to_string(), e);
    let file = BufReader::new(std::fs::File::open(archive).map_err(failed)?);
    let name = archive.to_string_lossy();
    let reader: Box<dyn Read> = if name.ends_with(".xz") {
        Box::new(lzma_rust2::XzReader::new(file, true))
    } else if name.ends_with(".zst") {
        let mut decoder = ruzstd::decoding::FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_MAX_WINDOW);
        let stream = ruzstd::decoding::StreamingDecoder::new_with_decoder(file, decoder);
        Box::new(stream.map_err(|e| broken(format!("not a zstd archive: {e}")))?)
    } else {
        Box::new(file)
    };
    let (reader, remaining) = HeaderLimitReader::new(reader);
    let mut tar = tar::Archive::new(reader);
    let mut entries = tar.entries().map_err(failed)?;
    loop {
        // Paths are read into memory, whatever length they claim.
        remaining.set(MAX_HEADER_BYTES);
        let Some(entry) = entries.next() else { break };
        remaining.set(u64::MAX);
        let mut entry = entry.map_err(|e| broken(format!("invalid archive: {e}")))?;
        let path = entry.path().map_err(failed)?.to_string_lossy().into_owned();
        let path = path.trim_start_matches("./");
        if !path.ends_with(&format!("/{GAME_FILE}")) || is_excluded(path) {
            // Not left to the next header, which is limited.
            std::io::copy(&mut entry, &mut std::io::sink()).map_err(|e| broken(format!("{path}: {e}")))?;
            continue;
        }
        let size = entry.size();
        if size > MAX_FILE_BYTES {
            return Err(broken(format!("{path}: larger than {MAX_FILE_BYTES} bytes, which no game file is")));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        entry.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|e| broken(format!("{path}: {e}")))?;
        if each(path, &bytes)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
