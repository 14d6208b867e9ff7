//! Curves over the episode index and their counts.

use mage_core::{
    Ceiling, EpisodeEnding, EpisodeResult, MetaEpisodeResult, MetricSummary, RateEstimate, UnplayedEpisodes,
    compare_to_ceiling, gap_fraction, pass_at_k, summarise,
};
use mage_env::Seed;
use proptest::prelude::*;
use rand::RngExt;

fn episode(ending: EpisodeEnding, score: f64) -> EpisodeResult {
    EpisodeResult { ending, score, actions: 4, invalid: 1, expected: None }
}

/// "wdlt" for won, drawn, lost, truncated; scores 1, 0, −1, 0. A trailing "!" means that it stopped after a win.
fn result(opponent: &str, seat: u8, story: &str) -> MetaEpisodeResult {
    let episodes = story.trim_end_matches('!').chars().map(|c| match c {
        'w' => episode(EpisodeEnding::Won, 1.0),
        'd' => episode(EpisodeEnding::Draw, 0.0),
        'l' => episode(EpisodeEnding::Lost, -1.0),
        _ => episode(EpisodeEnding::Truncated, 0.0),
    });
    MetaEpisodeResult {
        opponent: Some(opponent.to_owned()),
        seat,
        episodes: episodes.collect(),
        stopped_after_win: story.ends_with('!'),
    }
}

fn counts(r: RateEstimate) -> (u64, u64) {
    (r.hits, r.trials)
}

/// One task per meta-episode.
fn numbered(results: &[MetaEpisodeResult]) -> Vec<(usize, MetaEpisodeResult)> {
    results.iter().cloned().enumerate().collect()
}

fn summary(results: &[MetaEpisodeResult], unplayed: UnplayedEpisodes) -> MetricSummary {
    summarise(&numbered(results), 3, unplayed)
}

#[test]
fn cumulative_and_per_episode_rates_match_counts() {
    let results = [result("a", 0, "lwl"), result("a", 1, "wll"), result("b", 0, "dtl"), result("b", 1, "tld")];
    let s = summary(&results, UnplayedEpisodes::NotCounted).overall;
    let column = |f: fn(&mage_core::EpisodeMetrics) -> RateEstimate| {
        s.by_episode.iter().map(|e| counts(f(e))).collect::<Vec<_>>()
    };
    assert_eq!(column(|e| e.pass_at_k), [(1, 4), (2, 4), (2, 4)]);
    assert_eq!(column(|e| e.draw_or_win_at_k), [(2, 4), (3, 4), (4, 4)]);
    assert_eq!(column(|e| e.won), [(1, 4), (1, 4), (0, 4)]);
    assert_eq!(column(|e| e.draw_or_win), [(2, 4), (1, 4), (1, 4)]);
    assert_eq!(column(|e| e.lost), [(1, 4), (2, 4), (3, 4)]);
    assert_eq!(column(|e| e.truncated), [(1, 4), (1, 4), (0, 4)]);
    assert_eq!(column(|e| e.invalid), [(4, 16); 3]);
    assert_eq!(counts(s.invalid), (12, 48));
    let scores: Vec<_> = s.by_episode.iter().map(|e| (e.score.mean.unwrap(), e.score.count)).collect();
    assert_eq!(scores, [(0.0, 4), (-0.25, 4), (-0.75, 4)]);
    assert_eq!(s.by_episode.iter().map(|e| e.k).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn early_stop_counts_as_won_later_and_not_per_episode() {
    let results = [result("a", 0, "w!"), result("a", 0, "lw!"), result("a", 0, "lll")];
    let s = summary(&results, UnplayedEpisodes::NotCounted).overall;
    let third = &s.by_episode[2];
    assert_eq!(counts(third.pass_at_k), (2, 3));
    assert_eq!(counts(third.draw_or_win_at_k), (2, 3));
    assert_eq!(counts(third.won), (0, 1));
    assert_eq!(third.score.count, 1);
    // The counting of the paper.
    let paper = summary(&results, UnplayedEpisodes::NotWon).overall;
    assert_eq!(counts(paper.by_episode[1].won), (1, 3));
    assert_eq!(counts(paper.by_episode[2].won), (0, 3));
    assert_eq!(counts(paper.by_episode[2].lost), (1, 3));
    assert_eq!(paper.by_episode[2].score, third.score);
    assert_eq!(paper.by_episode[2].pass_at_k, third.pass_at_k);
}

#[test]
fn curves_have_full_length_after_early_stop() {
    let s = summary(&[result("a", 0, "w!")], UnplayedEpisodes::NotCounted).overall;
    assert_eq!(s.by_episode.len(), 3);
    assert_eq!(counts(s.by_episode[2].pass_at_k), (1, 1));
    assert_eq!((counts(s.by_episode[2].won), s.by_episode[2].won.rate), ((0, 0), None));
    assert_eq!((s.by_episode[2].score.mean, s.by_episode[2].score.interval), (None, None));
}

#[test]
fn unfinished_meta_episodes_are_excluded() {
    // Unfinished with and without a win, and one flagged as stopped after a win without a win.
    let results = [result("a", 0, "w"), result("a", 0, "l"), result("a", 0, "l!"), result("a", 0, "lw")];
    let s = summary(&results, UnplayedEpisodes::NotWon).overall;
    assert_eq!(counts(s.by_episode[0].pass_at_k), (1, 4));
    assert_eq!(counts(s.by_episode[1].pass_at_k), (1, 1));
    assert_eq!(counts(s.by_episode[1].won), (1, 1));
}

#[test]
fn slices_by_opponent_and_seat_match_counts() {
    let mut results = vec![result("a", 0, "ww"), result("a", 1, "ll"), result("b", 1, "lw")];
    results.push(MetaEpisodeResult { opponent: None, ..result("", 2, "d") });
    let s = summarise(&numbered(&results), 2, UnplayedEpisodes::NotCounted);
    assert_eq!(s.by_opponent.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(counts(s.by_opponent["a"].by_episode[0].won), (1, 2));
    assert_eq!(s.by_opponent["b"].score.mean, Some(0.0));
    assert_eq!(s.by_seat.iter().map(|(k, v)| (*k, v.meta_episodes)).collect::<Vec<_>>(), [(0, 1), (1, 2), (2, 1)]);
    assert_eq!(counts(s.by_seat[&1].by_episode[1].pass_at_k), (1, 2));
    // In JSON every value keeps its count, and absent values are null.
    let json = serde_json::to_value(&s).unwrap();
    assert_eq!(json["by_seat"]["1"]["by_episode"][1]["pass_at_k"]["trials"], 2);
    assert_eq!(json["by_opponent"]["b"]["by_episode"][0]["score"]["count"], 1);
    assert!(json["by_opponent"]["b"]["by_episode"][0]["score"]["interval"].is_null());
    assert_eq!(serde_json::from_value::<MetricSummary>(json).unwrap(), s);
}

/// Additional seeds of a task are not additional tasks, in any slice: intervals depend on tasks.
#[test]
fn additional_seeds_of_a_task_keep_the_interval() {
    let once: Vec<MetaEpisodeResult> = (0..40).map(|i| result("a", 0, if i % 4 == 0 { "w" } else { "l" })).collect();
    let thrice: Vec<(usize, MetaEpisodeResult)> =
        numbered(&once).into_iter().flat_map(|r| [r.clone(), r.clone(), r]).collect();
    let of = |results: &[(usize, MetaEpisodeResult)]| summarise(results, 1, UnplayedEpisodes::NotCounted);
    let (one, three) = (of(&numbered(&once)), of(&thrice));
    for (one, three) in [
        (&one.overall, &three.overall),
        (&one.by_opponent["a"], &three.by_opponent["a"]),
        (&one.by_seat[&0], &three.by_seat[&0]),
    ] {
        assert_eq!((three.meta_episodes, three.tasks), (120, 40));
        let (one, three) = (&one.by_episode[0], &three.by_episode[0]);
        assert_eq!((one.score, three.won.tasks, three.won.trials), (three.score, 40, 120));
        assert!((one.won.interval.low - three.won.interval.low).abs() < 0.01, "{:?} {:?}", one.won, three.won);
        assert!((one.won.interval.high - three.won.interval.high).abs() < 0.01);
    }
}

#[test]
fn empty_results_give_empty_metrics() {
    let s = summary(&[], UnplayedEpisodes::NotCounted).overall;
    assert_eq!((s.meta_episodes, s.score.count, s.score.mean), (0, 0, None));
    assert_eq!((s.by_episode[0].won.interval.low, s.by_episode[0].won.interval.high), (0.0, 1.0));
    let empty = compare_to_ceiling(&[], &Ceiling { memoryless: vec![0.0], adaptive: vec![1.0] });
    assert!(empty.by_episode.is_empty() && empty.total_regret.count == 0);
}

#[test]
fn gap_fraction_and_regret_match_hand_computed_values() {
    // Kuhn, last of three episodes: 0.232 chips between 0.125 and 0.238.
    assert!((gap_fraction(0.232, 0.125, 0.238).unwrap() - 0.947).abs() < 1e-3);
    assert_eq!(gap_fraction(1.0, 1.0, 1.0), None);
    assert_eq!(gap_fraction(0.5, 1.0, 0.9), None);
    let ceiling = Ceiling { memoryless: vec![0.0, 0.0, 0.0], adaptive: vec![0.0, 0.5, 1.0] };
    // Mean scores by episode: −1/3, 0, 2/3; the last result is unfinished and excluded from the total.
    let few = [result("a", 0, "lww"), result("a", 0, "dlw"), result("a", 0, "ddd"), result("a", 0, "ld")];
    let uncertain = compare_to_ceiling(&numbered(&few), &ceiling);
    assert!(uncertain.by_episode[2].gap_fraction.is_none(), "the interval is wider than the gap");
    let results: Vec<MetaEpisodeResult> = (0..25).flat_map(|_| few.clone()).collect();
    let comparison = compare_to_ceiling(&numbered(&results), &ceiling);
    assert!(comparison.by_episode[0].gap_fraction.is_none());
    assert_eq!(comparison.by_episode[1].gap_fraction.unwrap().mean, Some(0.0));
    let last = &comparison.by_episode[2];
    assert!((last.gap_fraction.unwrap().mean.unwrap() - 2.0 / 3.0).abs() < 1e-12);
    assert!((last.regret.mean.unwrap() - 1.0 / 3.0).abs() < 1e-12);
    assert_eq!((last.regret.count, comparison.by_episode[1].regret.count), (75, 100));
    // (1.5 − 1), (1.5 − 0), (1.5 − 0), each over three episodes.
    assert!((comparison.total_regret.mean.unwrap() - 3.5 / 3.0).abs() < 1e-12);
    assert_eq!(comparison.total_regret.count, 75);
    // Regret decreases in the score, so its interval is reversed.
    let (regret, share) = (last.regret.interval.unwrap(), last.gap_fraction.unwrap().interval.unwrap());
    assert!(regret.low <= regret.high);
    assert!((regret.low - (1.0 - share.high)).abs() < 1e-12);
}

#[test]
fn retries_without_learning_match_the_formula() {
    let mut rng = Seed::new(5).child("retry").rng();
    let p = 0.288;
    let results: Vec<MetaEpisodeResult> = (0..4000)
        .map(|_| {
            let story: String = (0..10).map(|_| if rng.random::<f64>() < p { 'w' } else { 'l' }).collect();
            let stopped = match story.find('w') {
                Some(first) => format!("{}!", &story[..=first]),
                None => story,
            };
            result("a", 0, &stopped)
        })
        .collect();
    let s = summarise(&numbered(&results), 10, UnplayedEpisodes::NotCounted).overall;
    for point in &s.by_episode {
        let want = pass_at_k(p, point.k);
        assert!((point.pass_at_k.rate.unwrap() - want).abs() < 0.03, "k = {}", point.k);
        assert_eq!(point.pass_at_k.trials, 4000);
    }
}

fn any_results() -> impl Strategy<Value = Vec<MetaEpisodeResult>> {
    prop::collection::vec(
        (prop::sample::select(vec!["a", "b"]), 0_u8..2, "[wdlt]{0,4}!?").prop_map(|(o, s, story)| result(o, s, &story)),
        0..12,
    )
}

proptest! {
    #[test]
    fn summaries_of_any_results_are_consistent(results in any_results(), not_won in any::<bool>()) {
        let unplayed = if not_won { UnplayedEpisodes::NotWon } else { UnplayedEpisodes::NotCounted };
        let s = summarise(&numbered(&results), 4, unplayed);
        let mut reversed = results.clone();
        reversed.reverse();
        prop_assert_eq!(&s, &summarise(&numbered(&reversed), 4, unplayed));
        for slice in s.by_opponent.values().chain(s.by_seat.values()).chain([&s.overall]) {
            for e in &slice.by_episode {
                prop_assert!(e.pass_at_k.hits <= e.draw_or_win_at_k.hits);
                prop_assert!(e.won.hits <= e.draw_or_win.hits && e.won.hits <= e.pass_at_k.hits);
                prop_assert!(e.draw_or_win.hits + e.lost.hits + e.truncated.hits <= e.won.trials);
                for r in [e.pass_at_k, e.won, e.lost, e.invalid] {
                    prop_assert!(r.rate.is_none_or(|x| r.interval.contains(x)));
                    prop_assert!(0.0 <= r.interval.low && r.interval.high <= 1.0);
                }
            }
        }
        for k in 0..4 {
            let total = |slices: Vec<&mage_core::MetricSlice>| -> (u64, u64) {
                let won = slices.iter().map(|s| counts(s.by_episode[k].won));
                won.fold((0, 0), |(h, n), (hits, of)| (h + hits, n + of))
            };
            prop_assert_eq!(total(s.by_opponent.values().collect()), counts(s.overall.by_episode[k].won));
            prop_assert_eq!(total(s.by_seat.values().collect()), counts(s.overall.by_episode[k].won));
        }
    }
}
