//! Is our tree search as strong as the one it is modelled on?
//!
//! Recorded results of OpenSpiel's C++ `MCTSBot` (600 games a row; "perfect" is minimax, uniform among best moves) next
//! to ours. Two shares agree when they differ by at most three standard errors, theirs and ours combined. With `--features long`
//! every row is 20,000 games of ours; `-- --nocapture` prints the rows.

use mage_env::{
    Game, Opponent, Seed, Turn, UniformOpponent,
    mcts::MctsOpponent,
    tictactoe::{Perfect, TicTacToe, search},
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
        while let Turn::Player(p) = TicTacToe.turn(&s) {
            let a = players[usize::from(p)].act(&TicTacToe, &s, p, &mut rng);
            TicTacToe.apply(&mut s, a);
        }
        counts[(1.0 - TicTacToe.returns(&s)[seat]) as usize] += 1;
    }
    Record { games: games as f64, shares: counts.map(|c| f64::from(c) / games as f64) }
}

fn assert_agree(what: &str, ours: Record, recorded: [f64; 3]) {
    let theirs = Record { games: 600.0, shares: recorded };
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
        // The recorded shares are rounded to a tenth of a percent (or to whole percents).
        let rounding = if q * 1000.0 % 10.0 == 0.0 { 0.005 } else { 0.0005 };
        assert!(
            (p - q).abs() <= 3.0 * error + rounding,
            "{what}: {ending} {p:.4} of {} games, recorded {q:.4} of 600 (standard error {error:.4})",
            ours.games
        );
    }
}

fn compare(simulations: u32, games: u64, second_random: [f64; 3], second_perfect: [f64; 3], first_perfect: [f64; 3]) {
    let bot = MctsOpponent::new(search(simulations));
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

/// How many games a row has: few enough for every day, unless asked for all.
fn games(everyday: u64) -> u64 {
    if cfg!(feature = "long") { 20_000 } else { everyday }
}

#[test]
fn a_hundred_simulations_are_as_strong_as_recorded() {
    compare(100, games(5_000), [0.835, 0.15, 0.015], [0.0, 0.535, 0.465], [0.0, 0.997, 0.003]);
}

#[test]
fn a_thousand_simulations_are_as_strong_as_recorded() {
    compare(1_000, games(1_000), [0.78, 0.22, 0.002], [0.0, 0.988, 0.012], [0.0, 1.0, 0.0]);
}

/// Rows recorded to whole percents: a coarser comparison, but at strengths where a small difference in the search shows
/// most.
#[test]
fn few_simulations_are_as_weak_as_recorded() {
    for (simulations, second_random, second_perfect, first_perfect) in [
        (10, [0.67, 0.14, 0.19], [0.0, 0.16, 0.84], [0.0, 0.61, 0.39]),
        (25, [0.81, 0.14, 0.05], [0.0, 0.34, 0.66], [0.0, 0.96, 0.04]),
    ] {
        compare(simulations, games(5_000), second_random, second_perfect, first_perfect);
    }
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
    for ties in [mage_env::tictactoe::Ties::Uniform, mage_env::tictactoe::Ties::Fixed] {
        let perfect = Perfect { ties };
        for (seat, players) in
            [(0, [&perfect as &dyn Opponent<_>, &UniformOpponent]), (1, [&UniformOpponent, &perfect])]
        {
            assert_eq!(play(players, seat, 2_000, Seed::new(3)).shares[2], 0.0);
        }
        assert_eq!(play([&perfect, &perfect], 0, 500, Seed::new(4)).shares, [0.0, 1.0, 0.0]);
    }
}
