//! What is the most one could hope for?
//!
//! Nobody does better than one who is told everything: the type, and within an episode the position too. What that one
//! would earn is quickly known, and spares the search every action that could not be the best even so.

use super::{
    hidden_type::Hidden,
    seat_view::{SeatView, SpotId},
};

/// The last episode's score and the sum over episodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Hope {
    pub(super) last: f64,
    pub(super) sum: f64,
}

impl Hope {
    /// So much of another on top.
    pub(super) fn add(&mut self, share: f64, of: Hope) {
        self.last += share * of.last;
        self.sum += share * of.sum;
    }
}

/// What one who is told earns.
pub(super) struct Told {
    /// By strategy, by spot: in the rest of the episode.
    here: Vec<Vec<f64>>,
    /// By the number of episodes that follow, by type of the present one: in those.
    later: Vec<Vec<Hope>>,
    /// By type: in one episode, told the type alone.
    best: Vec<f64>,
}

impl Told {
    /// Of one episode; [`look_ahead`](Told::look_ahead) adds others.
    pub(super) fn new(view: &SeatView, hidden: &Hidden) -> Self {
        let strategies = hidden.types.iter().map(|t| t.strategy + 1).max().unwrap_or(0);
        let here = (0..strategies).map(|strategy| {
            let mut known = vec![None; view.spots.len()];
            (0..view.spots.len()).map(|spot| from_spot(view, strategy, spot as SpotId, &mut known)).collect()
        });
        let nothing = vec![Hope::default(); hidden.types.len()];
        Told { here: here.collect(), later: vec![nothing], best: Vec::new() }
    }

    /// Up to so many episodes, where `best` is the best response to each type.
    pub(super) fn look_ahead(&mut self, hidden: &Hidden, best: Vec<f64>, episodes: u32) {
        self.best = best;
        for left in 1..episodes {
            let of_type = |t: usize| {
                let mut hope = Hope::default();
                hidden.next_of(t).for_each(|(to, p)| hope.add(p, self.at_start(to, left)));
                hope
            };
            let row = (0..hidden.types.len()).map(of_type).collect();
            self.later.push(row);
        }
    }

    /// In one episode, by type.
    pub(super) fn best(&self) -> &[f64] {
        &self.best
    }

    /// With `left` episodes left, this one included, and none of it played.
    pub(super) fn at_start(&self, of: usize, left: u32) -> Hope {
        self.with(self.best[of], of, left)
    }

    /// With `left` episodes left, and this one come to a spot.
    pub(super) fn at_spot(&self, strategy: usize, spot: SpotId, of: usize, left: u32) -> Hope {
        self.with(self.here[strategy][spot as usize], of, left)
    }

    fn with(&self, here: f64, of: usize, left: u32) -> Hope {
        let later = self.later[left as usize - 1][of];
        Hope { last: if left == 1 { here } else { later.last }, sum: here + later.sum }
    }
}

fn from_spot(view: &SeatView, strategy: usize, spot: SpotId, known: &mut [Option<f64>]) -> f64 {
    if let Some(value) = known[spot as usize] {
        return value;
    }
    let here = &view.spots[spot as usize];
    let actions = view.sights[here.sight as usize].actions.len();
    let mut best = if actions == 0 { here.score } else { f64::NEG_INFINITY };
    for action in 0..actions {
        let leads = view.leads(strategy, spot, action);
        best = best.max(leads.iter().map(|(to, p)| p * from_spot(view, strategy, *to, known)).sum());
    }
    known[spot as usize] = Some(best);
    best
}
