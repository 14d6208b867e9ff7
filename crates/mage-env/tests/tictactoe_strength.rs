//! Is our tree search as strong as the one it is modelled on?
//!
//! Recorded results of OpenSpiel's C++ `MCTSBot` (600 games a row; "perfect" is minimax, uniform among best moves) next
//! to ours. Two shares agree when they differ by at most three standard errors, theirs and ours combined. Rows are 5,000 games
//! of ours, with `--features long` 20,000; `-- --nocapture` prints them.

use mage_env::{
    CurrentPlayer, Game, Opponent, Seed, UniformOpponent,
    solvers::mcts::MctsOpponent,
    tictactoe::{Perfect, TicTacToe, paper_mcts},
};

/// Shares of games a player won, drew and lost.
#[derive(Clone, Copy, Debug)]
struct Record {
    games: f64,
    shares: [f64; 3],
}

impl Record {
    /// Of the share of one ending.
    fn standard_error(&self, ending: usize) -> f64 {
        let share = self.shares[ending];
        (share * (1.0 - share) / self.games).sqrt()
    }
}

/// Games between two players, seen by `seat`.
fn play(players: [&dyn Opponent<TicTacToe>; 2], seat: usize, games: u64, seed: Seed) -> Record {
    let mut counts = [0_u32; 3];
    for i in 0..games {
        let mut rng = seed.at(i).rng();
        let mut s = TicTacToe.initial(&mut rng);
        while let CurrentPlayer::Player(p) = TicTacToe.current_player(&s) {
            let a = players[usize::from(p)].act(&TicTacToe, &s, p, &mut rng);
            TicTacToe.apply(&mut s, a);
        }
        counts[(1.0 - TicTacToe.returns(&s)[seat]) as usize] += 1;
    }
    Record { games: games as f64, shares: counts.map(|c| f64::from(c) / games as f64) }
}

/// A row as it was recorded, with what rounding it may have lost.
#[derive(Clone, Copy)]
struct Recorded {
    record: Record,
    rounding: f64,
}

/// Games of 600, found again from rounded percents: 99.7 % can only have been 598.
fn of_600(counts: [u32; 3]) -> Recorded {
    assert_eq!(counts.iter().sum::<u32>(), 600);
    Recorded { record: Record { games: 600.0, shares: counts.map(|c| f64::from(c) / 600.0) }, rounding: 0.0 }
}

/// Whole percents of a number of games that was not recorded; taken for 600.
fn percents(percents: [f64; 3]) -> Recorded {
    Recorded { record: Record { games: 600.0, shares: percents.map(|p| p / 100.0) }, rounding: 0.005 }
}

fn assert_agree(what: &str, ours: Record, recorded: Recorded) {
    let theirs = recorded.record;
    let percent = |r: Record| {
        let share = |i: usize| format!("{:.3} ± {:.3}", 100.0 * r.shares[i], 100.0 * r.standard_error(i));
        [0, 1, 2].map(share).join(" / ")
    };
    eprintln!(
        "{what}, won / drew / lost in % ± standard error: {} of {} games (recorded: {} of 600)",
        percent(ours),
        ours.games,
        percent(theirs)
    );
    for (i, ending) in ["won", "drew", "lost"].into_iter().enumerate() {
        let (p, q) = (ours.shares[i], theirs.shares[i]);
        let error = (ours.standard_error(i).powi(2) + theirs.standard_error(i).powi(2)).sqrt();
        assert!(
            (p - q).abs() <= 3.0 * error + recorded.rounding,
            "{what}: {ending} {p:.4} of {} games, recorded {q:.4} of 600 (standard error {error:.4})",
            ours.games
        );
    }
}

fn compare(simulations: u32, second_random: Recorded, second_perfect: Recorded, first_perfect: Recorded) {
    let games = if cfg!(feature = "long") { 20_000 } else { 5_000 };
    let bot = MctsOpponent::new(paper_mcts(simulations));
    let perfect = Perfect::default();
    let seed = Seed::new(u64::from(simulations));
    let name = |what: &str| format!("{simulations} simulations, {what}");
    let r = play([&UniformOpponent, &bot], 1, games, seed.child("random"));
    assert_agree(&name("second against random"), r, second_random);
    let r = play([&perfect, &bot], 1, games, seed.child("perfect"));
    assert_agree(&name("second against perfect"), r, second_perfect);
    let r = play([&bot, &perfect], 0, games, seed.child("first"));
    assert_agree(&name("first against perfect"), r, first_perfect);
}

#[test]
fn a_hundred_simulations_are_as_strong_as_recorded() {
    compare(100, of_600([501, 90, 9]), of_600([0, 321, 279]), of_600([0, 598, 2]));
}

/// Against random 78 % and 22 %, which with one game lost leave 465 to 470 won: near the middle.
#[test]
fn a_thousand_simulations_are_as_strong_as_recorded() {
    compare(1_000, of_600([468, 131, 1]), of_600([0, 593, 7]), of_600([0, 600, 0]));
}

/// Rows recorded to whole percents: a coarser comparison, but at strengths where a small difference in the search shows
/// most.
#[test]
fn few_simulations_are_as_weak_as_recorded() {
    compare(10, percents([67.0, 14.0, 19.0]), percents([0.0, 16.0, 84.0]), percents([0.0, 61.0, 39.0]));
    compare(25, percents([81.0, 14.0, 5.0]), percents([0.0, 34.0, 66.0]), percents([0.0, 96.0, 4.0]));
}

#[test]
fn random_against_random_is_as_known() {
    let r = play([&UniformOpponent, &UniformOpponent], 0, 40_000, Seed::new(9));
    for (ours, exact) in r.shares.into_iter().zip([0.58492, 0.12698, 0.28810]) {
        assert!((ours - exact).abs() < 0.01, "{ours} where {exact} is exact");
    }
}

#[test]
fn the_perfect_player_never_loses() {
    for ties in [mage_env::tictactoe::TieBreak::Uniform, mage_env::tictactoe::TieBreak::Fixed] {
        let perfect = Perfect { ties };
        for (seat, players) in
            [(0, [&perfect as &dyn Opponent<_>, &UniformOpponent]), (1, [&UniformOpponent, &perfect])]
        {
            assert_eq!(play(players, seat, 2_000, Seed::new(3)).shares[2], 0.0);
        }
        assert_eq!(play([&perfect, &perfect], 0, 500, Seed::new(4)).shares, [0.0, 1.0, 0.0]);
    }
}
