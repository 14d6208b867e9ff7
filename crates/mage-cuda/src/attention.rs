//! How do whole sequences attend to themselves, and how does the gradient come back?
//!
//! By kernels that every card has, a block for each tile; or, where tensor cores read tiles by themselves, by blocks of two
//! teams that stay and take one work after the other.

use crate::TILE;
use crate::error::{CudaError, Result};
use crate::model::CudaModel;
use crate::nvrtc::Teams;
use crate::stream::{Stream, args};
use crate::tma;

/// Bytes of shared memory that a block of teams has.
pub(crate) const TEAM_SHARED: usize = 197 << 10;
/// Two that reckon, and one that brings them their tiles.
const TEAM_THREADS: usize = 3 * 128;

/// Which kernels attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A block for each tile.
    Tiles,
    /// So many blocks of two teams, or as many as there are works.
    Teams { blocks: usize },
}

impl Way {
    /// Queries, or keys, of an item.
    pub(crate) fn rows(self) -> usize {
        match self {
            Way::Tiles => TILE,
            Way::Teams { .. } => 2 * TILE,
        }
    }
}

/// Pieces of sequences, those that take longest first: where they are listed, and how many.
pub(crate) type Items = (u64, usize);

/// Numbers of whole sequences, by where they lie: rows of turned queries and keys, rows that end with values, and what comes of them.
#[derive(Clone, Copy)]
pub(crate) struct Attending {
    pub(crate) rows: usize,
    pub(crate) qk: u64,
    pub(crate) qkv: u64,
    pub(crate) out: u64,
    pub(crate) log_sums: u64,
}

/// The loss's slopes, by where they lie: by what attention yields, the share of that in each head's own gradient, by turned queries and
/// keys, and by rows that end with values.
#[derive(Clone, Copy)]
pub(crate) struct Slopes {
    pub(crate) out: u64,
    pub(crate) delta: u64,
    pub(crate) qk: u64,
    pub(crate) qkv: u64,
}

impl CudaModel {
    /// The faster way that there is.
    pub(crate) fn attention_way(&self) -> Way {
        // One on every multiprocessor: no more fit there.
        let blocks = self.device.info().multiprocessors;
        if self.program.teams.is_some() { Way::Teams { blocks } } else { Way::Tiles }
    }

    /// What each query makes of the keys up to its own, and the logarithm of their sum.
    pub(crate) fn attend(&self, s: &Stream, way: Way, of: Attending, (items, count): Items) -> Result<()> {
        let Attending { rows, qk, qkv, out, log_sums } = of;
        let (heads, kv, scale) = (self.shape.num_heads, self.shape.num_kv_heads, self.shape.softmax_scale());
        match way {
            Way::Tiles => s.launch(
                self.program.functions.attention,
                (count, heads, 1),
                128,
                4 * self.shape.tile_bytes(),
                args![qk, qkv, items, heads, kv, scale, out, log_sums],
            ),
            Way::Teams { blocks } => {
                let (works, [qk, qkv]) =
                    (count * heads, self.head_maps(rows, [(qk, heads + kv), (qkv, heads + 2 * kv)])?);
                s.launch(
                    self.teams()?.team_attention,
                    (blocks.min(works), 1, 1),
                    TEAM_THREADS,
                    TEAM_SHARED,
                    args![qk, qkv, items, works, heads, kv, scale, out, log_sums],
                )
            }
        }
    }

    /// From the slopes by what attention yields to those by turned queries and keys, and by values.
    pub(crate) fn attend_back(
        &self,
        s: &Stream,
        way: Way,
        of: Attending,
        slopes: Slopes,
        (queries, query_count): Items,
        (keys, key_count): Items,
    ) -> Result<()> {
        let Attending { rows, qk, qkv, out, log_sums } = of;
        let Slopes { out: dout, delta, qk: dqk, qkv: dqkv } = slopes;
        let (heads, kv, scale) = (self.shape.num_heads, self.shape.num_kv_heads, self.shape.softmax_scale());
        let (f, units) = (&self.program.functions, rows * heads);
        s.launch(f.attention_delta, (units.div_ceil(8), 1, 1), 256, 0, args![out, dout, units, heads, delta])?;
        match way {
            Way::Tiles => {
                let tile = self.shape.tile_bytes();
                s.launch(
                    f.attention_grad_keys,
                    (key_count, kv, 1),
                    128,
                    6 * tile + 1024,
                    args![qk, qkv, dout, log_sums, delta, keys, heads, kv, scale, dqk, dqkv],
                )?;
                s.launch(
                    f.attention_grad_queries,
                    (query_count, heads, 1),
                    128,
                    4 * tile,
                    args![qk, qkv, dout, log_sums, delta, queries, heads, kv, scale, dqk],
                )
            }
            Way::Teams { blocks } => {
                let maps = self.head_maps(rows, [(qk, heads + kv), (qkv, heads + 2 * kv), (dout, heads)])?;
                let ([qk, qkv, dout], teams, works) = (maps, self.teams()?, key_count * kv);
                let [sums_on, deltas_on] =
                    [log_sums, delta].map(|at| tma::numbers(at, rows, self.shape.head_stats_stride(), TILE));
                s.launch(
                    teams.team_grad_keys,
                    (blocks.min(works), 1, 1),
                    TEAM_THREADS,
                    TEAM_SHARED,
                    args![qk, qkv, dout, sums_on?, deltas_on?, keys, works, heads, kv, scale, dqk, dqkv],
                )?;
                let works = query_count * heads;
                s.launch(
                    teams.team_grad_queries,
                    (blocks.min(works), 1, 1),
                    TEAM_THREADS,
                    TEAM_SHARED,
                    args![qk, qkv, dout, log_sums, delta, queries, works, heads, kv, scale, dqk],
                )
            }
        }
    }

    fn teams(&self) -> Result<&Teams> {
        let none = || CudaError::new("attending", "this card has no such kernels".to_owned());
        self.program.teams.as_ref().ok_or_else(none)
    }

    /// How the card reads rows of so many heads.
    fn head_maps<const N: usize>(&self, rows: usize, places: [(u64, usize); N]) -> Result<[tma::Map; N]> {
        let mut maps = [tma::Map { opaque: [0; 16] }; N];
        for (map, (at, heads)) in maps.iter_mut().zip(places) {
            *map = tma::heads(at, rows, heads, self.shape.head_dim, TILE)?;
        }
        Ok(maps)
    }
}
