//! Room generator, reproducing the reference implementation draw by draw.
//!
//! A random walk carves the floor, player and targets are placed, boxes are pulled off the targets ([`ReversePlay`]),
//! the player takes a few random steps, and the room is accepted if its shortest solution lies within a window. A seed
//! that yields no room (which the reference reseeds from a per-process hash) continues with a derived seed.

use super::{
    bfs::shortest_path,
    bitboard::Bitboard,
    board::{Move, NO_CELL, SokobanBoard, SokobanState},
    level::{SokobanLevel, Tile},
    reverse_play::{MAX_BOXES, ReversePlay, ReverseResult},
    solvable_table::{SolvableTable, placements},
};
use crate::{
    Error, Result, Seed,
    mt19937::{NumpyRandom, PythonRandom},
};

/// Parameters of the room generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomConfig {
    /// Rows, including the surrounding walls.
    pub rows: usize,
    /// Columns, including the surrounding walls.
    pub cols: usize,
    /// Number of boxes.
    pub boxes: usize,
    /// Depth limit of reverse play, and maximum length of a solution.
    pub search_depth: u32,
    /// Minimum length of the shortest solution.
    pub min_solution: u32,
    /// Maximum length of the shortest solution.
    pub max_solution: u32,
    /// If all ten rooms of a seed are outside the window: keep the tenth, as the reference does, instead of continuing
    /// with derived seeds until a room fits.
    pub keep_out_of_window: bool,
}

impl Default for RoomConfig {
    /// The paper's rooms.
    fn default() -> Self {
        RoomConfig {
            rows: 6,
            cols: 6,
            boxes: 2,
            search_depth: 100,
            min_solution: 5,
            max_solution: 21,
            keep_out_of_window: false,
        }
    }
}

/// A generated room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SokobanRoom {
    /// The level.
    pub level: SokobanLevel,
    /// Length of the shortest solution in moves, if within the window.
    pub solution: Option<u32>,
    /// Number of derived seeds tried; usually 0.
    pub retries: u32,
}

/// Rooms the reference draws per seed to meet the window.
const ROOMS_PER_SEED: u32 = 10;
/// Floors the reference carves per room to move boxes off their targets.
const FLOORS_PER_ROOM: u32 = 4;
/// Derived seeds to try before reporting that the configuration is infeasible.
const MAX_RETRIES: u32 = 1000;
/// Probability that the random walk changes direction at each step.
const TURN_PROBABILITY: f64 = 0.35;

/// 3×3 masks of the cells the walk opens around its position.
const MASKS: [[[u8; 3]; 3]; 5] = [
    [[0, 0, 0], [1, 1, 1], [0, 0, 0]],
    [[0, 1, 0], [0, 1, 0], [0, 1, 0]],
    [[0, 0, 0], [1, 1, 0], [0, 1, 0]],
    [[0, 0, 0], [1, 1, 0], [1, 1, 0]],
    [[0, 0, 0], [0, 1, 1], [0, 1, 0]],
];

/// Directions of the random walk in the reference's order, which differs from that of moves.
const WALK_DIRECTIONS: [(isize, isize); 4] = [(1, 0), (0, 1), (-1, 0), (0, -1)];

/// Room generator; reuses its buffers between rooms.
pub struct Generator {
    config: RoomConfig,
    bits64: RoomWorkspace<u64>,
    bits128: RoomWorkspace<u128>,
}

struct RoomWorkspace<B> {
    reverse: ReversePlay<B>,
    table: SolvableTable<B>,
}

struct RoomRngs {
    python: PythonRandom,
    numpy: NumpyRandom,
}

impl Generator {
    /// Creates a generator; fails if the configuration is invalid.
    pub fn new(config: RoomConfig) -> Result<Self> {
        let s = config;
        let bad = |problem: String| Err(Error::invalid("options of sokoban", problem));
        if s.rows < 4 || s.cols < 4 || (s.rows - 2) * (s.cols - 2) > super::board::MAX_CELLS {
            let most = super::board::MAX_CELLS;
            return bad(format!(
                "unsupported room size {}x{}: rows and columns must be at least 4, and the interior may have at most \
                {most} cells",
                s.rows, s.cols
            ));
        }
        if s.boxes == 0 || s.boxes > MAX_BOXES {
            return bad(format!("unsupported number of boxes: {} (must be 1 to {MAX_BOXES})", s.boxes));
        }
        if s.search_depth < 2 {
            return bad(format!("search_depth {} is too small (minimum 2)", s.search_depth));
        }
        if s.min_solution > s.max_solution || s.max_solution == 0 {
            return bad(format!("invalid solution length window: {} to {} moves", s.min_solution, s.max_solution));
        }
        Ok(Generator {
            config,
            bits64: RoomWorkspace { reverse: ReversePlay::new(), table: SolvableTable::new() },
            bits128: RoomWorkspace { reverse: ReversePlay::new(), table: SolvableTable::new() },
        })
    }

    /// Generates the room of a seed.
    pub fn room(&mut self, seed: u32) -> Result<SokobanRoom> {
        let mut now = seed;
        for retries in 0..=MAX_RETRIES {
            if let Some((level, solution)) = self.draw(now)
                && (solution.is_some() || self.config.keep_out_of_window)
            {
                return Ok(SokobanRoom { level, solution, retries });
            }
            now = Seed::new(u64::from(seed)).child("sokoban retry").at(u64::from(retries)).value() as u32;
        }
        let s = &self.config;
        Err(Error::invalid(
            "options of sokoban",
            format!(
                "found no {}x{} room with {} boxes and a shortest solution of {} to {} moves for seed {seed} and \
                {MAX_RETRIES} derived seeds; increase the room size, reduce the boxes or widen the window",
                s.rows, s.cols, s.boxes, s.min_solution, s.max_solution
            ),
        ))
    }

    /// The reference's result for a seed: the first of ten rooms within the window, or the tenth; `None` where the
    /// reference gives up and reseeds.
    fn draw(&mut self, seed: u32) -> Option<(SokobanLevel, Option<u32>)> {
        let config = self.config;
        let mut rngs = RoomRngs { python: PythonRandom::new(seed), numpy: NumpyRandom::new(seed) };
        let mut last = None;
        for _ in 0..ROOMS_PER_SEED {
            let (level, solution) = if (config.rows - 2) * (config.cols - 2) <= 64 {
                self.bits64.room(&config, &mut rngs)?
            } else {
                self.bits128.room(&config, &mut rngs)?
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

impl<B: Bitboard> RoomWorkspace<B> {
    fn room(&mut self, config: &RoomConfig, rngs: &mut RoomRngs) -> Option<(SokobanLevel, Option<u32>)> {
        let (mut cells, board, pulled) = self.place_boxes(config, rngs)?;
        let mut start = SokobanState { boxes: 0, player: pulled.player };
        for cell in pulled.boxes.cells() {
            start.boxes |= 1 << cell;
        }
        random_steps(&board, &mut start, if pulled.displacement == 1 { 0.8 } else { 0.5 }, &mut rngs.python);
        let solution = self.solution(config, &board, &start);
        for (i, cell) in cells.iter_mut().enumerate() {
            *cell = board.at(&start, i / config.cols, i % config.cols);
        }
        Some((SokobanLevel::from_cells(config.cols, cells), solution))
    }

    /// Carves a floor, places targets and player, and pulls the boxes off the targets.
    fn place_boxes(
        &mut self,
        config: &RoomConfig,
        rngs: &mut RoomRngs,
    ) -> Option<(Vec<Tile>, SokobanBoard, ReverseResult<B>)> {
        for _ in 0..FLOORS_PER_ROOM {
            let mut cells = carve_floor(config, &mut rngs.python);
            place_player_and_targets(&mut cells, config.boxes, &mut rngs.numpy)?;
            let level = SokobanLevel::from_cells(config.cols, cells);
            let (board, start) = SokobanBoard::new(&level).expect("the configuration was validated");
            let pulled = self.reverse.run(&board, start.player, config.search_depth);
            if pulled.displacement > 0 {
                return Some((level.into_cells(), board, pulled));
            }
        }
        None
    }

    /// Length of the shortest solution, if within the window.
    fn solution(&mut self, config: &RoomConfig, board: &SokobanBoard, start: &SokobanState) -> Option<u32> {
        let max_moves = config.max_solution.min(config.search_depth);
        let moves = if placements(board).is_some() {
            self.table.distance(board, start, max_moves)
        } else {
            shortest_path(board, *start, max_moves).map(|path| path.len() as u32)
        };
        moves.filter(|m| *m >= config.min_solution)
    }
}

/// Carves the floor by a random walk.
fn carve_floor(config: &RoomConfig, python: &mut PythonRandom) -> Vec<Tile> {
    let (rows, cols) = (config.rows, config.cols);
    let steps = (1.7 * (rows + cols) as f64) as u32;
    let mut direction = WALK_DIRECTIONS[python.below(4) as usize];
    let mut row = 1 + python.below(rows as u32 - 1) as isize;
    let mut col = 1 + python.below(cols as u32 - 1) as isize;
    let mut cells = vec![Tile::Wall; rows * cols];
    for _ in 0..steps {
        if python.unit() < TURN_PROBABILITY {
            direction = WALK_DIRECTIONS[python.below(4) as usize];
        }
        row = (row + direction.0).clamp(1, rows as isize - 2);
        col = (col + direction.1).clamp(1, cols as isize - 2);
        let mask = &MASKS[python.below(5) as usize];
        for (r, line) in (row as usize - 1..).zip(mask) {
            for (c, open) in (col as usize - 1..).zip(line) {
                let inside = (1..rows - 1).contains(&r) && (1..cols - 1).contains(&c);
                if *open == 1 && inside {
                    cells[r * cols + c] = Tile::Floor;
                }
            }
        }
    }
    cells
}

/// Places the player and the targets on free floor; `None` where the reference finds too few free cells.
fn place_player_and_targets(cells: &mut [Tile], boxes: usize, numpy: &mut NumpyRandom) -> Option<()> {
    let mut free = cells.iter().filter(|c| **c == Tile::Floor).count();
    if free <= boxes + 1 {
        return None;
    }
    for tile in std::iter::once(Tile::Player).chain(std::iter::repeat_n(Tile::Target, boxes)) {
        let pick = numpy.below(free as u32) as usize;
        *cells.iter_mut().filter(|c| **c == Tile::Floor).nth(pick).expect("counted") = tile;
        free -= 1;
    }
    Some(())
}

/// Moves the player by up to three random steps, never onto a box or a visited cell.
fn random_steps(board: &SokobanBoard, s: &mut SokobanState, probability: f64, python: &mut PythonRandom) {
    if python.unit() > probability {
        return;
    }
    let mut visited = 1_u128 << s.player;
    for step in 1..=3 {
        let mut free = [NO_CELL; 4];
        let mut count = 0;
        for direction in Move::ALL {
            let to = board.neighbour(s.player, direction);
            if to != NO_CELL && (s.boxes | visited) >> to & 1 == 0 {
                free[count] = to;
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        s.player = free[python.below(count as u32) as usize];
        visited |= 1 << s.player;
        if step == 3 || python.unit() > 0.5 {
            return;
        }
    }
}
