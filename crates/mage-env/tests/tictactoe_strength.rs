//! Playing strength of MCTS, compared with OpenSpiel's.
//!
//! Recorded results of OpenSpiel's C++ `MCTSBot` (600 games per row; "perfect" is minimax, uniform among best moves)
//! and ours. Two rates agree if they differ by at most three combined standard errors. A row has 5,000 games of ours,
//! 20,000 with `--features long`; `-- --nocapture` prints them.

use mage_env::{
    CurrentPlayer, Game, Opponent, Seed, UniformOpponent,
    solvers::mcts::MctsOpponent,
    tictactoe::{Perfect, TicTacToe, paper_mcts},
};

/// Rates of games won, drawn and lost.
#[derive(Clone, Copy, Debug)]
struct GameRates {
    games: f64,
    rates: [f64; 3],
}

impl GameRates {
    /// Standard error of one rate.
    fn standard_error(&self, ending: usize) -> f64 {
        let share = self.rates[ending];
        (share * (1.0 - share) / self.games).sqrt()
    }
}

/// Plays games between two players and counts results of `seat`.
fn play(players: [&dyn Opponent<TicTacToe>; 2], seat: usize, games: u64, seed: Seed) -> GameRates {
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
    GameRates { games: games as f64, rates: counts.map(|c| f64::from(c) / games as f64) }
}

/// A recorded row, with its rounding error.
#[derive(Clone, Copy)]
struct Recorded {
    rates: GameRates,
    rounding: f64,
}

/// Counts of 600 games, recovered from rounded percentages: 99.7 % can only have been 598.
fn of_600(counts: [u32; 3]) -> Recorded {
    assert_eq!(counts.iter().sum::<u32>(), 600);
    Recorded { rates: GameRates { games: 600.0, rates: counts.map(|c| f64::from(c) / 600.0) }, rounding: 0.0 }
}

/// Rounded percentages of an unrecorded number of games, assumed to be 600.
fn percents(percents: [f64; 3]) -> Recorded {
    Recorded { rates: GameRates { games: 600.0, rates: percents.map(|p| p / 100.0) }, rounding: 0.005 }
}

fn assert_agree(what: &str, ours: GameRates, recorded: Recorded) {
    let theirs = recorded.rates;
    let percent = |r: GameRates| {
        let share = |i: usize| format!("{:.3} ± {:.3}", 100.0 * r.rates[i], 100.0 * r.standard_error(i));
        [0, 1, 2].map(share).join(" / ")
    };
    eprintln!(
        "{what}, won / drew / lost in % ± standard error: {} of {} games (recorded: {} of 600)",
        percent(ours),
        ours.games,
        percent(theirs)
    );
    for (i, ending) in ["won", "drew", "lost"].into_iter().enumerate() {
        let (p, q) = (ours.rates[i], theirs.rates[i]);
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
fn mcts_100_matches_recorded_strength() {
    compare(100, of_600([501, 90, 9]), of_600([0, 321, 279]), of_600([0, 598, 2]));
}

/// Recorded against random: 78 % and 22 %. With one game lost, 465 to 470 were won; the test takes a value near the
/// middle.
#[test]
fn mcts_1000_matches_recorded_strength() {
    compare(1_000, of_600([468, 131, 1]), of_600([0, 593, 7]), of_600([0, 600, 0]));
}

/// Rows recorded as whole percentages: a coarser comparison, but at few simulations, where small differences in the
/// search have the largest effect.
#[test]
fn mcts_with_few_simulations_matches_recorded_strength() {
    compare(10, percents([67.0, 14.0, 19.0]), percents([0.0, 16.0, 84.0]), percents([0.0, 61.0, 39.0]));
    compare(25, percents([81.0, 14.0, 5.0]), percents([0.0, 34.0, 66.0]), percents([0.0, 96.0, 4.0]));
}

#[test]
fn random_against_random_matches_exact_rates() {
    let r = play([&UniformOpponent, &UniformOpponent], 0, 40_000, Seed::new(9));
    for (ours, exact) in r.rates.into_iter().zip([0.58492, 0.12698, 0.28810]) {
        assert!((ours - exact).abs() < 0.01, "{ours}, exact {exact}");
    }
}

#[test]
fn perfect_player_never_loses() {
    for ties in [mage_env::tictactoe::TieBreak::Uniform, mage_env::tictactoe::TieBreak::Fixed] {
        let perfect = Perfect { ties };
        for (seat, players) in
            [(0, [&perfect as &dyn Opponent<_>, &UniformOpponent]), (1, [&UniformOpponent, &perfect])]
        {
            assert_eq!(play(players, seat, 2_000, Seed::new(3)).rates[2], 0.0);
        }
        assert_eq!(play([&perfect, &perfect], 0, 500, Seed::new(4)).rates, [0.0, 1.0, 0.0]);
    }
}
