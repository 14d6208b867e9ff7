//! What does one seat see of a game, move by move?
//!
//! A [`SeatView`] keeps only the *spots* at which the agent decides or sees the end. Everything between two spots
//! (chance and the other seats) is summed up once, for each strategy the others may follow: a list of the spots it
//! leads to and how likely. Equal positions are one spot however they came about, so that Tic-Tac-Toe needs its 5,478
//! positions and not its 549,946 histories.

use super::super::best_response::no_policy;
use crate::{ActionId, ActionList, CurrentPlayer, Error, Game, Result, Seed, Strategy};
use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    ops::Range,
};

/// The most positions a game may have here.
const MAX_POSITIONS: usize = 1_000_000;

/// A place where the agent decides or sees how it ended, by number.
pub(super) type SpotId = u32;

/// Where play may lead, with probabilities.
pub(super) type Leads = [(SpotId, f64)];

/// One seat's view of a game against some strategies.
pub(super) struct SeatView {
    pub(super) spots: Vec<Spot>,
    /// What the agent can tell apart: a text, and whether it is the end.
    pub(super) sights: Vec<Sight>,
    sight_ids: HashMap<(String, bool), u32>,
    /// By strategy, by (spot, action) slot: where it leads.
    tables: Vec<Table>,
    /// By strategy, by deal: where the episode begins.
    starts: Vec<Vec<Vec<(SpotId, f64)>>>,
    /// The openings of nature, with probabilities; one that stands for all where deals are fresh.
    pub(super) deals: Vec<f64>,
    /// Whether some spot can be reached in more than one way, so that remembering values within an episode pays.
    pub(super) transposes: bool,
    /// The largest absolute score of any end.
    pub(super) largest_score: f64,
    /// The least score of any end.
    pub(super) least_score: f64,
}

/// One place.
pub(super) struct Spot {
    /// What the agent sees there.
    pub(super) sight: u32,
    /// The score, at an end.
    pub(super) score: f64,
    /// The slot of its first action in the tables.
    first_slot: usize,
}

/// What the agent sees.
pub(super) struct Sight {
    pub(super) over: bool,
    pub(super) actions: ActionList,
}

/// Lists of leads in one array.
#[derive(Default)]
struct Table {
    flat: Vec<(SpotId, f64)>,
    ranges: Vec<Range<u32>>,
}

impl SeatView {
    /// The view of `seat` when the others follow one of `strategies`. With `fixed` deals, each opening of nature (all
    /// chance before anybody acts) becomes a deal of its own.
    pub(super) fn new<G: Game>(game: &G, seat: u8, strategies: &[Strategy<G>], fixed: bool) -> Result<Self>
    where
        G::State: Eq + Hash,
    {
        let positions = Positions::new(game)?;
        let mut view = SeatView {
            spots: Vec::new(),
            sights: Vec::new(),
            sight_ids: HashMap::new(),
            tables: Vec::new(),
            starts: Vec::new(),
            deals: Vec::new(),
            transposes: false,
            largest_score: 0.0,
            least_score: f64::INFINITY,
        };
        let mut spot_of = vec![None; positions.states.len()];
        let mut slots = Vec::new(); // the position each (spot, action) leads to
        for (p, state) in positions.states.iter().enumerate() {
            let over = match game.current_player(state) {
                CurrentPlayer::Terminal => true,
                CurrentPlayer::Player(mover) if mover == seat => false,
                _ => continue,
            };
            let score = if over { f64::from(game.returns(state)[usize::from(seat)]) } else { 0.0 };
            let actions = if over { ActionList::new() } else { game.legal(state) };
            let sight = view.sight(game.observe(state, seat), over, actions)?;
            spot_of[p] = Some(view.spots.len() as SpotId);
            view.spots.push(Spot { sight, score, first_slot: slots.len() });
            view.largest_score = view.largest_score.max(score.abs());
            if over {
                view.least_score = view.least_score.min(score);
            }
            slots.extend(positions.children[p].iter().map(|(_, child)| *child));
        }

        let openings = if fixed { positions.openings(game) } else { vec![(0, 1.0)] };
        view.deals = openings.iter().map(|(_, p)| *p).collect();
        let mut sources = vec![0_u8; view.spots.len()];
        for strategy in strategies {
            let walk = Walk { game, positions: &positions, spot_of: &spot_of, strategy };
            let mut table = Table::default();
            for slot in &slots {
                let leads = walk.from(*slot)?;
                leads.iter().for_each(|(s, _)| sources[*s as usize] = sources[*s as usize].saturating_add(1));
                table.push(&leads);
            }
            view.tables.push(table);
            view.starts.push(openings.iter().map(|(p, _)| walk.from(*p)).collect::<Result<_>>()?);
        }
        view.transposes = sources.iter().any(|n| usize::from(*n) > strategies.len());
        Ok(view)
    }

    /// Where an episode may begin for the agent.
    pub(super) fn starts(&self, strategy: usize, deal: usize) -> &Leads {
        &self.starts[strategy][deal]
    }

    /// Where the agent's `action`-th legal action at a spot may lead.
    pub(super) fn leads(&self, strategy: usize, spot: SpotId, action: usize) -> &Leads {
        self.tables[strategy].get(self.spots[spot as usize].first_slot + action)
    }

    /// The sight of a text, if the game has it.
    pub(super) fn sight_id(&self, text: &str, over: bool) -> Option<u32> {
        self.sight_ids.get(&(text.to_owned(), over)).copied()
    }

    fn sight(&mut self, text: String, over: bool, actions: ActionList) -> Result<u32> {
        if let Some(id) = self.sight_id(&text, over) {
            if self.sights[id as usize].actions != actions {
                return Err(Error::invalid(
                    "oracle",
                    format!(
                        "`{text}` stands for positions with different legal actions; `observe` must tell them apart"
                    ),
                ));
            }
            return Ok(id);
        }
        let id = self.sights.len() as u32;
        self.sight_ids.insert((text, over), id);
        self.sights.push(Sight { over, actions });
        Ok(id)
    }
}

impl Table {
    fn push(&mut self, leads: &Leads) {
        let start = self.flat.len() as u32;
        self.flat.extend_from_slice(leads);
        self.ranges.push(start..self.flat.len() as u32);
    }

    fn get(&self, slot: usize) -> &Leads {
        let range = &self.ranges[slot];
        &self.flat[range.start as usize..range.end as usize]
    }
}

/// Whether a strategy states its probabilities in every position and seat.
pub(in crate::solvers) fn states_probabilities<G: Game>(game: &G, strategy: &Strategy<G>) -> Result<bool>
where
    G::State: Eq + Hash,
{
    let stated = |s: &G::State| match game.current_player(s) {
        CurrentPlayer::Player(mover) => strategy.policy(game, s, mover).is_some(),
        _ => true,
    };
    Ok(Positions::new(game)?.states.iter().all(stated))
}

/// Every position of a game, equal ones once; the start is number 0.
struct Positions<S> {
    states: Vec<S>,
    children: Vec<Vec<(ActionId, u32)>>,
}

impl<S: Clone + Eq + Hash> Positions<S> {
    fn new<G: Game<State = S>>(game: &G) -> Result<Self> {
        let start = game.initial(&mut Seed::new(0).rng());
        if (1..8).any(|seed| game.initial(&mut Seed::new(seed).rng()) != start) {
            return Err(Error::invalid("oracle", "the game starts from drawn set-ups; exact oracles need one start"));
        }
        let mut index = HashMap::from([(start.clone(), 0)]);
        let mut found = Positions { states: vec![start], children: Vec::new() };
        let mut at = 0;
        while at < found.states.len() {
            let state = found.states[at].clone();
            let actions = game.legal(&state);
            let mut children = Vec::with_capacity(actions.len());
            for a in actions {
                let mut next = state.clone();
                game.apply(&mut next, a);
                let fresh = found.states.len() as u32;
                let id = *index.entry(next.clone()).or_insert(fresh);
                if id == fresh {
                    found.states.push(next);
                }
                children.push((a, id));
            }
            found.children.push(children);
            if found.states.len() > MAX_POSITIONS {
                let problem = format!("more than {MAX_POSITIONS} positions; exact oracles are for smaller games");
                return Err(Error::invalid("oracle", problem));
            }
            at += 1;
        }
        found.refuse_cycles()?;
        Ok(found)
    }

    fn refuse_cycles(&self) -> Result<()> {
        let mut parents = vec![0_u32; self.states.len()];
        self.children.iter().flatten().for_each(|(_, c)| parents[*c as usize] += 1);
        let mut ready: VecDeque<u32> = if parents[0] == 0 { VecDeque::from([0]) } else { VecDeque::new() };
        let mut done = 0;
        while let Some(p) = ready.pop_front() {
            done += 1;
            for (_, c) in &self.children[p as usize] {
                parents[*c as usize] -= 1;
                if parents[*c as usize] == 0 {
                    ready.push_back(*c);
                }
            }
        }
        if done == self.states.len() {
            return Ok(());
        }
        Err(Error::invalid("oracle", "a position can come back, so a game may never end; exact oracles need an end"))
    }

    /// Positions after all of nature's opening moves, with probabilities.
    fn openings<G: Game<State = S>>(&self, game: &G) -> Vec<(u32, f64)> {
        let mut out = Vec::new();
        let mut open = vec![(0_u32, 1.0)];
        while let Some((p, weight)) = open.pop() {
            let state = &self.states[p as usize];
            if game.current_player(state) == CurrentPlayer::Chance {
                open.extend(game.chance(state).iter().map(|(a, q)| (self.child(p, *a), weight * q)));
            } else {
                out.push((p, weight));
            }
        }
        merge(&mut out);
        out
    }

    fn child(&self, p: u32, a: ActionId) -> u32 {
        let found = self.children[p as usize].iter().find(|(b, _)| *b == a);
        found.expect("chance and policies name legal actions").1
    }
}

/// From the agent's action to its next decision, with one strategy in all other seats.
struct Walk<'a, G: Game> {
    game: &'a G,
    positions: &'a Positions<G::State>,
    spot_of: &'a [Option<SpotId>],
    strategy: &'a Strategy<G>,
}

impl<G: Game> Walk<'_, G>
where
    G::State: Eq + Hash,
{
    fn from(&self, position: u32) -> Result<Vec<(SpotId, f64)>> {
        let mut out = Vec::new();
        let mut open = vec![(position, 1.0)];
        while let Some((p, weight)) = open.pop() {
            if let Some(spot) = self.spot_of[p as usize] {
                out.push((spot, weight));
                continue;
            }
            let state = &self.positions.states[p as usize];
            let turn = self.game.current_player(state);
            let probs = match turn {
                CurrentPlayer::Player(mover) => {
                    let stated = self.strategy.policy(self.game, state, mover);
                    stated.ok_or_else(|| no_policy(self.game, state, mover))?
                }
                _ => self.game.chance(state),
            };
            let legal = &self.positions.children[p as usize];
            let total: f64 = probs.iter().map(|(_, q)| q).sum();
            let sound = |(a, q): &(ActionId, f64)| *q >= 0.0 && (*q == 0.0 || legal.iter().any(|(b, _)| a == b));
            if (total - 1.0).abs() > 1e-9 || !probs.iter().all(sound) {
                let seen = self.game.observe(state, 0);
                let whose = match turn {
                    CurrentPlayer::Player(mover) => format!("the strategy in seat {mover}"),
                    _ => "chance".to_owned(),
                };
                let problem = format!("{whose} gives no distribution over the legal actions at `{seen}`");
                return Err(Error::invalid("oracle", problem));
            }
            let likely = probs.iter().filter(|(_, q)| *q > 0.0);
            open.extend(likely.map(|(a, q)| (self.positions.child(p, *a), weight * q)));
        }
        merge(&mut out);
        Ok(out)
    }
}

fn merge(leads: &mut Vec<(u32, f64)>) {
    leads.sort_by_key(|(id, _)| *id);
    leads.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 += later.1;
        }
        same
    });
}
