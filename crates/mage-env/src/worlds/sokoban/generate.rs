//! Which room does a seed stand for?
//!
//! The reference's generator, draw by draw: a random walk carves a floor, player and targets are placed, boxes are pulled
//! off the targets ([`ReversePlay`]), the player takes a few steps more, and the room is accepted if its shortest solution
//! lies within a window. A seed that leads nowhere (in the reference: reseeded from a hash that differs from process to
//! process) goes on with a seed derived from it.

use super::{
    bits::Bits,
    board::{Board, Move, NOWHERE, State},
    level::{Cell, Level},
    path::shortest_path,
    reverse::{MAX_BOXES, Pulled, ReversePlay},
    table::{Table, placements},
};
use crate::{
    Error, Result, Seed,
    mt19937::{NumpyRandom, PythonRandom},
};

/// What is asked of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomSettings {
    /// Rows, walls around included.
    pub rows: usize,
    /// Columns, walls around included.
    pub cols: usize,
    /// How many boxes.
    pub boxes: usize,
    /// How deep boxes are pulled, and how long a solution may be to count.
    pub search_depth: u32,
    /// The fewest moves the shortest solution may take.
    pub min_solution: u32,
    /// The most moves the shortest solution may take.
    pub max_solution: u32,
    /// What to do when ten rooms of a seed do not fit the window: keep the tenth as the reference does, or go on with a
    /// derived seed until one fits.
    pub keep_misfits: bool,
}

impl Default for RoomSettings {
    /// The paper's rooms.
    fn default() -> Self {
        RoomSettings {
            rows: 6,
            cols: 6,
            boxes: 2,
            search_depth: 100,
            min_solution: 5,
            max_solution: 21,
            keep_misfits: false,
        }
    }
}

/// A room that came of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The room itself.
    pub level: Level,
    /// Length of its shortest solution in moves, if within the window.
    pub solution: Option<u32>,
    /// How many seeds were derived until it was found; 0 for most.
    pub retries: u32,
}

/// How many rooms the reference draws to meet the window.
const ROOMS_A_SEED: u32 = 10;
/// How many times the reference carves a floor to get boxes off their targets.
const FLOORS_A_ROOM: u32 = 4;
/// How many derived seeds are tried before the settings are called impossible.
const MAX_RETRIES: u32 = 1000;
/// How likely the walk turns at each step.
const TURN: f64 = 0.35;

/// Cells the walk opens around itself: rows of three, the walk in the middle.
const MASKS: [[[u8; 3]; 3]; 5] = [
    [[0, 0, 0], [1, 1, 1], [0, 0, 0]],
    [[0, 1, 0], [0, 1, 0], [0, 1, 0]],
    [[0, 0, 0], [1, 1, 0], [0, 1, 0]],
    [[0, 0, 0], [1, 1, 0], [1, 1, 0]],
    [[0, 0, 0], [0, 1, 1], [0, 1, 0]],
];

/// Directions of the walk in the reference's order, which is not that of moves.
const WALK: [(isize, isize); 4] = [(1, 0), (0, 1), (-1, 0), (0, -1)];

/// Makes rooms, reusing its memory.
pub struct Generator {
    settings: RoomSettings,
    narrow: Workshop<u64>,
    wide: Workshop<u128>,
}

struct Workshop<B> {
    reverse: ReversePlay<B>,
    table: Table<B>,
}

struct Dice {
    python: PythonRandom,
    numpy: NumpyRandom,
}

impl Generator {
    /// A generator of such rooms, or what is wrong with the settings.
    pub fn new(settings: RoomSettings) -> Result<Self> {
        let s = settings;
        let bad = |problem: String| Err(Error::invalid("options of sokoban", problem));
        if s.rows < 4 || s.cols < 4 || (s.rows - 2) * (s.cols - 2) > super::board::MAX_CELLS {
            let most = super::board::MAX_CELLS;
            return bad(format!(
                "rooms of {} by {} cannot be made; rows and columns are at least 4, and without the walls around there \
                 may be {most} cells",
                s.rows, s.cols
            ));
        }
        if s.boxes == 0 || s.boxes > MAX_BOXES {
            return bad(format!("{} boxes; rooms have 1 to {MAX_BOXES}", s.boxes));
        }
        if s.search_depth < 2 {
            return bad(format!("search_depth {} is too small; 2 at least", s.search_depth));
        }
        if s.min_solution > s.max_solution || s.max_solution == 0 {
            return bad(format!("no solution takes {} to {} moves", s.min_solution, s.max_solution));
        }
        Ok(Generator {
            settings,
            narrow: Workshop { reverse: ReversePlay::new(), table: Table::new() },
            wide: Workshop { reverse: ReversePlay::new(), table: Table::new() },
        })
    }

    /// The room of a seed.
    pub fn room(&mut self, seed: u32) -> Result<Room> {
        let mut now = seed;
        for retries in 0..=MAX_RETRIES {
            if let Some((level, solution)) = self.draw(now)
                && (solution.is_some() || self.settings.keep_misfits)
            {
                return Ok(Room { level, solution, retries });
            }
            now = Seed::new(u64::from(seed)).child("sokoban retry").at(u64::from(retries)).value() as u32;
        }
        let s = &self.settings;
        Err(Error::invalid(
            "options of sokoban",
            format!(
                "no room of {} by {} with {} boxes and a shortest solution of {} to {} moves came of seed {seed} and \
                 {MAX_RETRIES} derived ones; make the room larger, the boxes fewer or the window wider",
                s.rows, s.cols, s.boxes, s.min_solution, s.max_solution
            ),
        ))
    }

    /// What the reference makes of a seed: the first of ten rooms that fits the window, or the tenth; nothing where it
    /// gives up and reseeds.
    fn draw(&mut self, seed: u32) -> Option<(Level, Option<u32>)> {
        let settings = self.settings;
        let mut dice = Dice { python: PythonRandom::new(seed), numpy: NumpyRandom::new(seed) };
        let mut last = None;
        for _ in 0..ROOMS_A_SEED {
            let (level, solution) = if (settings.rows - 2) * (settings.cols - 2) <= 64 {
                self.narrow.room(&settings, &mut dice)?
            } else {
                self.wide.room(&settings, &mut dice)?
            };
            let fits = solution.is_some();
            last = Some((level, solution));
            if fits {
                break;
            }
        }
        last
    }
}

impl<B: Bits> Workshop<B> {
    fn room(&mut self, settings: &RoomSettings, dice: &mut Dice) -> Option<(Level, Option<u32>)> {
        let (mut cells, board, pulled) = self.furnish(settings, dice)?;
        let mut start = State { boxes: 0, player: pulled.player };
        for cell in pulled.boxes.cells() {
            start.boxes |= 1 << cell;
        }
        wander(&board, &mut start, if pulled.displacement == 1 { 0.8 } else { 0.5 }, &mut dice.python);
        let solution = self.solution(settings, &board, &start);
        for (i, cell) in cells.iter_mut().enumerate() {
            *cell = board.at(&start, i / settings.cols, i % settings.cols);
        }
        Some((Level::from_cells(settings.cols, cells), solution))
    }

    /// A floor with targets, and the boxes pulled off them.
    fn furnish(&mut self, settings: &RoomSettings, dice: &mut Dice) -> Option<(Vec<Cell>, Board, Pulled<B>)> {
        for _ in 0..FLOORS_A_ROOM {
            let mut cells = carve(settings, &mut dice.python);
            place(&mut cells, settings.boxes, &mut dice.numpy)?;
            let level = Level::from_cells(settings.cols, cells);
            let (board, start) = Board::new(&level).expect("the settings were checked");
            let pulled = self.reverse.run(&board, start.player, settings.search_depth);
            if pulled.displacement > 0 {
                return Some((level.into_cells(), board, pulled));
            }
        }
        None
    }

    /// The shortest solution's length if it is within the window.
    fn solution(&mut self, settings: &RoomSettings, board: &Board, start: &State) -> Option<u32> {
        let most = settings.max_solution.min(settings.search_depth);
        let moves = if placements(board).is_some() {
            self.table.distance(board, start, most)
        } else {
            shortest_path(board, *start, most).map(|path| path.len() as u32)
        };
        moves.filter(|m| *m >= settings.min_solution)
    }
}

/// Carves a floor by a random walk.
fn carve(settings: &RoomSettings, python: &mut PythonRandom) -> Vec<Cell> {
    let (rows, cols) = (settings.rows, settings.cols);
    let steps = (1.7 * (rows + cols) as f64) as u32;
    let mut way = WALK[python.below(4) as usize];
    let mut row = 1 + python.below(rows as u32 - 1) as isize;
    let mut col = 1 + python.below(cols as u32 - 1) as isize;
    let mut cells = vec![Cell::Wall; rows * cols];
    for _ in 0..steps {
        if python.unit() < TURN {
            way = WALK[python.below(4) as usize];
        }
        row = (row + way.0).clamp(1, rows as isize - 2);
        col = (col + way.1).clamp(1, cols as isize - 2);
        let mask = &MASKS[python.below(5) as usize];
        for (r, line) in (row as usize - 1..).zip(mask) {
            for (c, open) in (col as usize - 1..).zip(line) {
                let inside = (1..rows - 1).contains(&r) && (1..cols - 1).contains(&c);
                if *open == 1 && inside {
                    cells[r * cols + c] = Cell::Floor;
                }
            }
        }
    }
    cells
}

/// Places the player and the targets on free floor; `None` where the reference finds too little of it.
fn place(cells: &mut [Cell], boxes: usize, numpy: &mut NumpyRandom) -> Option<()> {
    let mut free = cells.iter().filter(|c| **c == Cell::Floor).count();
    if free <= boxes + 1 {
        return None;
    }
    for thing in std::iter::once(Cell::Player).chain(std::iter::repeat_n(Cell::Target, boxes)) {
        let pick = numpy.below(free as u32) as usize;
        *cells.iter_mut().filter(|c| **c == Cell::Floor).nth(pick).expect("counted") = thing;
        free -= 1;
    }
    Some(())
}

/// The player's own steps, one to three, never onto a box nor where it has been.
fn wander(board: &Board, s: &mut State, likely: f64, python: &mut PythonRandom) {
    if python.unit() > likely {
        return;
    }
    let mut been = 1_u128 << s.player;
    for step in 1..=3 {
        let mut free = [NOWHERE; 4];
        let mut count = 0;
        for way in Move::ALL {
            let to = board.beside(s.player, way);
            if to != NOWHERE && (s.boxes | been) >> to & 1 == 0 {
                free[count] = to;
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        s.player = free[python.below(count as u32) as usize];
        been |= 1 << s.player;
        if step == 3 || python.unit() > 0.5 {
            return;
        }
    }
}
