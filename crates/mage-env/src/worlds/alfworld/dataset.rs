//! Where do official games come from?
//!
//! From a folder as ALFWorld unpacks it (`json_2.1.1/<split>/…/game.tw-pddl`), or from the same packed into archives
//! (`.tar`, `.tar.xz`, `.tar.zst`), which are read without unpacking. Games are always in the order of their paths: the
//! order of a directory is no order.

use super::{export::Rules, game_file::Game, goal::TaskKind, world::World};
use crate::{Error, Result, Seed};
use rand::seq::SliceRandom;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{BufReader, Read},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// The folder above the splits.
const ROOT: &str = "json_2.1.1";
/// What game files are called.
const FILE: &str = "game.tw-pddl";
/// What the official splits are called.
pub const OFFICIAL_SPLITS: [&str; 4] = ["train", "valid_seen", "valid_unseen", "valid_train"];
/// Official files have at most 250 kB; a bigger one is something else.
const MOST_BYTES: u64 = 16 << 20;
/// The packed games were compressed with a window of 128 MiB.
const WINDOW: u64 = 128 << 20;

/// Where the data is: as asked, else `alfworld` under `MAGE_DATA` (else under `data`), else `ALFWORLD_DATA`.
pub fn find_data(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = asked {
        return Ok(path.to_owned());
    }
    let mage = std::env::var_os("MAGE_DATA").map_or_else(|| PathBuf::from("data"), PathBuf::from).join("alfworld");
    let own = std::env::var_os("ALFWORLD_DATA").map(PathBuf::from);
    [Some(mage.clone()), own].into_iter().flatten().find(|p| p.is_dir()).ok_or_else(|| {
        let problem = format!(
            "there are none: name their folder (--data DIR where there is that flag, else --option data=DIR), or set \
             MAGE_DATA to the folder that holds alfworld/, or ALFWORLD_DATA to ALFWorld's own; there is no {}",
            mage.display()
        );
        Error::invalid("official games of alfworld", problem)
    })
}

/// A folder of games.
pub struct Data {
    root: PathBuf,
    form: Form,
    splits: Mutex<BTreeMap<String, Arc<Split>>>,
}

enum Form {
    /// The folder that holds the splits.
    Tree(PathBuf),
    Packed(Vec<PathBuf>),
}

/// The games of a split, in order.
#[derive(Default)]
pub struct Split {
    games: Vec<Entry>,
    bad: OnceLock<BTreeMap<usize, String>>,
}

/// One game of a split.
pub struct Entry {
    name: String,
    file: Option<PathBuf>,
    world: OnceLock<std::result::Result<Arc<World>, String>>,
}

impl Entry {
    /// The path below the data folder, which is its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The game, read at the first call and shared after that.
    pub fn world(&self) -> Result<Arc<World>> {
        let read = || {
            let file = self.file.as_deref().expect("packed games are read with their archive");
            read_file(file).and_then(|bytes| world(&bytes, &file.display().to_string())).map_err(|e| e.to_string())
        };
        let world = self.world.get_or_init(read);
        world.clone().map_err(|problem| Error::invalid("official games of alfworld", problem))
    }

    /// The sort of task, by the folder's name where that tells.
    fn kind(&self) -> Result<TaskKind> {
        let by_folder = |part: &str| TaskKind::ALL.into_iter().find(|k| part.starts_with(k.folder()));
        match self.name.split('/').find_map(by_folder) {
            Some(kind) => Ok(kind),
            None => self.world().map(|w| w.goal().kind),
        }
    }
}

impl Split {
    /// How many games there are.
    pub fn len(&self) -> usize {
        self.games.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.games.is_empty()
    }

    /// All games, in order.
    pub fn games(&self) -> &[Entry] {
        &self.games
    }

    /// The game of this name.
    pub fn named(&self, name: &str) -> Result<&Entry> {
        let found = self.games.binary_search_by(|g| g.name.as_str().cmp(name));
        found.map(|i| &self.games[i]).map_err(|_| Error::invalid(name, "there is no such game in the split"))
    }

    /// Where the games of some sorts of task are (of all, if none are named), in order.
    pub fn choose(&self, kinds: &[TaskKind], skip_bad: bool) -> Result<Vec<usize>> {
        let wanted = |i: usize| Ok(kinds.is_empty() || kinds.contains(&self.games[i].kind()?));
        let good = (0..self.games.len()).filter(|i| !skip_bad || !self.bad().contains_key(i));
        good.filter_map(|i| wanted(i).map(|w| w.then_some(i)).transpose()).collect()
    }

    /// The games that cannot be played, and why. Reads all of them at the first call.
    pub fn bad(&self) -> &BTreeMap<usize, String> {
        let problem = |g: &Entry| g.world().err().map(|e| e.to_string());
        let all = || self.games.iter().enumerate();
        self.bad.get_or_init(|| all().filter_map(|(i, g)| problem(g).map(|p| (i, p))).collect())
    }
}

impl Data {
    /// Looks at a folder.
    pub fn open(root: &Path) -> Result<Self> {
        let holds_splits = |p: &Path| OFFICIAL_SPLITS.iter().any(|s| p.join(s).is_dir());
        let form = match [root.join(ROOT), root.to_owned()].into_iter().find(|p| holds_splits(p)) {
            Some(tree) => Form::Tree(tree),
            None => Form::Packed(archives(root)?),
        };
        Ok(Data { root: root.to_owned(), form, splits: Mutex::default() })
    }

    /// The games of a split.
    pub fn split(&self, split: &str) -> Result<Arc<Split>> {
        let mut known = self.splits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(split) {
            return Ok(Arc::clone(found));
        }
        match &self.form {
            Form::Tree(tree) => {
                let mut files = Vec::new();
                walk(&tree.join(split), &format!("{ROOT}/{split}"), &mut files)?;
                files.sort();
                let entry = |(name, file)| Entry { name, file: Some(file), world: OnceLock::new() };
                known.insert(
                    split.to_owned(),
                    Arc::new(Split { games: files.into_iter().map(entry).collect(), ..Split::default() }),
                );
            }
            Form::Packed(archives) => {
                for archive in archives {
                    if known.contains_key(split) {
                        break;
                    }
                    read_splits(archive, &mut known)?;
                }
            }
        }
        let found = known.get(split).filter(|s| !s.is_empty()).cloned();
        found.ok_or_else(|| {
            let splits = OFFICIAL_SPLITS.join(", ");
            let problem = format!("there are no games of split `{split}` here; the official splits are {splits}");
            Error::invalid(self.root.display().to_string(), problem)
        })
    }

    /// Shows every game file to `each`, by name, until it has seen enough.
    pub fn visit(&self, mut each: impl FnMut(&str, &[u8]) -> Result<ControlFlow<()>>) -> Result<()> {
        match &self.form {
            Form::Tree(tree) => {
                let mut files = Vec::new();
                walk(tree, ROOT, &mut files)?;
                files.sort();
                for (name, file) in files {
                    if each(&name, &read_file(&file)?)?.is_break() {
                        break;
                    }
                }
            }
            Form::Packed(archives) => {
                for archive in archives {
                    if visit_archive(archive, &mut each)?.is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The rules of play, from the first game.
    pub(super) fn rules(&self) -> Result<Rules> {
        let mut found = None;
        self.visit(|name, bytes| {
            found = Some(Rules::from_game(bytes, name)?);
            Ok(ControlFlow::Break(()))
        })?;
        let none = || Error::invalid(self.root.display().to_string(), "there is no game file to take the rules from");
        found.ok_or_else(none)
    }

    /// The named games.
    pub(super) fn worlds<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<HashMap<String, Arc<World>>> {
        let mut found = HashMap::new();
        let mut missing: BTreeSet<&str> = names.collect();
        if let Form::Tree(tree) = &self.form {
            for name in missing {
                // Names begin with the tree's own folder, whichever of the two was given.
                let inside = Path::new(name).strip_prefix(ROOT).unwrap_or(Path::new(name));
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
            Some(name) => Err(Error::invalid(*name, format!("no archive in {} holds it", self.root.display()))),
            None => Ok(found),
        }
    }
}

/// Numbers below `len` in an endless row of shuffles: none comes again before all have come.
pub(super) fn dealt(len: usize, first: u64, seed: Seed) -> impl Iterator<Item = usize> {
    let mut order: (u64, Vec<usize>) = (u64::MAX, Vec::new());
    (first..).map(move |i| {
        let pass = i / len as u64;
        if order.0 != pass {
            order = (pass, (0..len).collect());
            order.1.shuffle(&mut seed.child("pass").at(pass).rng());
        }
        order.1[(i % len as u64) as usize]
    })
}

fn world(bytes: &[u8], place: &str) -> Result<Arc<World>> {
    Game::read(bytes, place).map(|g| Arc::new(World::new(&g.household)))
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Error::invalid(path.display().to_string(), "far too big for a game file"));
    }
    Ok(bytes)
}

/// The reference leaves out games whose paths say so.
fn left_out(name: &str) -> bool {
    name.contains("movable") || name.contains("Sliced")
}

fn walk(folder: &Path, name: &str, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let failed = |source| Error::Read { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let below = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            walk(&entry.path(), &below, files)?;
        } else if entry.file_name() == FILE && !left_out(&below) {
            files.push((below, entry.path()));
        }
    }
    Ok(())
}

/// The archives of a folder, or the one that was named, small ones first.
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
            format!("neither {ROOT}/<split>/…/{FILE} nor .tar, .tar.xz or .tar.zst archives of that are in it");
        return Err(Error::invalid(root.display().to_string(), problem));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Reads a whole archive once, into every split it holds.
fn read_splits(archive: &Path, known: &mut BTreeMap<String, Arc<Split>>) -> Result<()> {
    let mut read: BTreeMap<String, Split> = BTreeMap::new();
    let mut keep = |name: &str, bytes: &[u8]| {
        let Some(split) = name.split('/').nth(1) else { return Ok(ControlFlow::Continue(())) };
        let place = format!("{}: {name}", archive.display());
        let entry = Entry { name: name.to_owned(), file: None, world: OnceLock::new() };
        entry.world.get_or_init(|| world(bytes, &place).map_err(|e| e.to_string()));
        read.entry(split.to_owned()).or_default().games.push(entry);
        Ok(ControlFlow::Continue(()))
    };
    visit_archive(archive, &mut keep).map(|_| ())?;
    for (name, mut split) in read {
        split.games.sort_by(|a, b| a.name.cmp(&b.name));
        known.entry(name).or_insert_with(|| Arc::new(split));
    }
    Ok(())
}

/// Sees a game file by name, and says whether to go on.
type Visitor<'v> = &'v mut dyn FnMut(&str, &[u8]) -> Result<ControlFlow<()>>;

fn visit_archive(archive: &Path, each: Visitor<'_>) -> Result<ControlFlow<()>> {
    let failed = |source| Error::Read { path: archive.to_owned(), source };
    let broken = |e: String| Error::invalid(archive.display().to_string(), e);
    let file = BufReader::new(std::fs::File::open(archive).map_err(failed)?);
    let name = archive.to_string_lossy();
    let reader: Box<dyn Read> = if name.ends_with(".xz") {
        Box::new(lzma_rust2::XzReader::new(file, true))
    } else if name.ends_with(".zst") {
        let mut decoder = ruzstd::decoding::FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        let stream = ruzstd::decoding::StreamingDecoder::new_with_decoder(file, decoder);
        Box::new(stream.map_err(|e| broken(format!("not a zstd archive: {e}")))?)
    } else {
        Box::new(file)
    };
    let mut tar = tar::Archive::new(reader);
    for entry in tar.entries().map_err(failed)? {
        let entry = entry.map_err(|e| broken(format!("the archive is broken: {e}")))?;
        let path = entry.path().map_err(failed)?.to_string_lossy().into_owned();
        let path = path.trim_start_matches("./");
        if !path.ends_with(&format!("/{FILE}")) || left_out(path) {
            continue;
        }
        let size = entry.size();
        if size > MOST_BYTES {
            return Err(broken(format!("{path}: far too big for a game file")));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        entry.take(MOST_BYTES).read_to_end(&mut bytes).map_err(|e| broken(format!("{path}: {e}")))?;
        if each(path, &bytes)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
