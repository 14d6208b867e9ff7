//! WebShop for the registry.

use super::{
    compact, conformance,
    env::WebshopEnv,
    goals::{Goal, GoalKind},
    options::{self, ShopKey, Source, WebshopOptions},
    scripted_agents::{Reader, Told},
    session::Session,
    shop::{Seeded, Shop},
    splits::{Split, VALIDATION_GOALS, worker},
};
use crate::{
    Conformance, Env, EnvId, EnvInfo, EnvSpec, Error, OptionMap, Population, Result, ScriptedAgent,
    ScriptedAgentFactory, ScriptedAgentInfo, ScriptedAgentQuery, Seed, Task, registry::unknown_scripted_agent,
};
use rand::RngExt;
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Sends buyers into shops.
#[derive(Clone, Copy, Debug, Default)]
pub struct WebshopSpec;

/// The shops opened last.
struct OpenShops(Mutex<Vec<(ShopKey, Arc<Shop>)>>);

/// Everybody in the process who shops in one shares its catalogue and index.
static OPEN: OpenShops = OpenShops(Mutex::new(Vec::new()));

/// How many shops stay open at a time; one that is in use lives on without standing in the list.
const MOST_OPEN: usize = 4;

const ID: EnvId = EnvId::new("webshop");
const PLACE: &str = "options of webshop";

/// A shop and a goal.
struct Errand {
    shop: Arc<Shop>,
    seeded: Arc<Seeded>,
    goal: Arc<Goal>,
    options: WebshopOptions,
}

impl OpenShops {
    /// The shop of these settings.
    fn enter(&self, options: &WebshopOptions) -> Result<Arc<Shop>> {
        let key = options.shop_key()?;
        // Held while opening, so that many who ask at once wait for one shop instead of opening many.
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, shop)) = open.iter().find(|(k, _)| *k == key) {
            return Ok(Arc::clone(shop));
        }
        let shop = Arc::new(key.open()?);
        if open.len() == MOST_OPEN {
            open.remove(0);
        }
        open.push((key, Arc::clone(&shop)));
        Ok(shop)
    }
}

/// Why a catalogue has no goals.
fn no_goals(shop: &Shop, options: &WebshopOptions) -> Error {
    let products = shop.catalogue().products();
    let count = products.len();
    let problem = match (options.goals, options.catalogue) {
        (GoalKind::Human, Source::Generated) => {
            "nobody wrote wishes for generated products; set goals=synthetic, or catalogue=official".to_owned()
        }
        (GoalKind::Human, Source::Official) if products.iter().all(|p| p.human_wishes.is_empty()) => {
            format!("items_human_ins*.json has no wish for any of the {count} products; goals=synthetic needs none")
        }
        (GoalKind::Human, Source::Official) => {
            format!("no wish that people wrote for the {count} products names an attribute, so that none can be scored")
        }
        (GoalKind::Synthetic, Source::Generated) => {
            "none of the products made up happens to come with a wish; set products to a larger number".to_owned()
        }
        (GoalKind::Synthetic, Source::Official) => match products.iter().filter(|p| p.wish.is_some()).count() {
            0 => {
                format!("none of the {count} products has an `instruction` in items_ins_v2*.json: nothing is asked for")
            }
            wished => format!(
                "{wished} of the {count} products have an `instruction`, but each has an option without values in \
                 `customization_options`, so that no combination can be asked for"
            ),
        },
    };
    Error::invalid("goals of webshop", problem)
}

impl Errand {
    fn of(task: &Task) -> Result<Self> {
        let options: WebshopOptions = task.options.read(PLACE)?;
        let shop = OPEN.enter(&options)?;
        let table = shop.goals(options.goals);
        if table.len() == 0 {
            return Err(no_goals(&shop, &options));
        }
        let luck = task.seed.child("goal");
        let catalogue = shop.catalogue();
        let (seeded, number) = match (options.goal, table.in_split(catalogue, options.split)) {
            (Some(place), _) => {
                let seeded = table.seeded(catalogue, options.worker);
                let number = seeded.order.get(place as usize).copied();
                let number = number.ok_or_else(|| {
                    Error::invalid(
                        "option goal",
                        format!("there is no goal {place}; goals are 0 to {}", table.len() - 1),
                    )
                })?;
                (seeded, number)
            }
            (None, Some(goals)) => {
                if goals.is_empty() {
                    let problem = format!(
                        "none of the catalogue's {} goals fell into it ({}); take another split or a larger catalogue",
                        table.len(),
                        table.split_sizes(catalogue)
                    );
                    return Err(Error::invalid(format!("split {}", options.split.name()), problem));
                }
                let number = goals[luck.rng().random_range(0..goals.len())];
                (table.seeded(catalogue, options.worker), number)
            }
            (None, None) => {
                let seeded = table.seeded(catalogue, worker(options.split, luck.child("worker").value()));
                let validation = VALIDATION_GOALS.min(table.len());
                let goals =
                    if options.split == Split::ReferenceTrain { validation..table.len() } else { 0..validation };
                if goals.is_empty() {
                    return Err(Error::invalid(
                        "option split",
                        format!("reference-train begins after {VALIDATION_GOALS} goals, and there are {}", table.len()),
                    ));
                }
                let number = seeded.order[luck.rng().random_range(goals)];
                (seeded, number)
            }
        };
        let goal = Arc::new(table.goal(catalogue, &seeded.draws, number));
        Ok(Errand { seeded, goal, options, shop })
    }
}

impl EnvSpec for WebshopSpec {
    fn id(&self) -> EnvId {
        ID
    }

    fn info(&self) -> EnvInfo {
        EnvInfo {
            title: "WebShop".to_owned(),
            summary: "search, compare and buy what an instruction asks for".to_owned(),
            unit: "score of the purchase, 0 to 1".to_owned(),
            seats: 1,
            max_turns: 12,
            options: options::docs(),
            opponents: Vec::new(),
            compact_words: compact::vocabulary(),
            max_compact_action_words: 1,
            compact_reflection_words: compact::REFLECTION_WORDS,
        }
    }

    fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        let Errand { shop, seeded, goal, options } = Errand::of(task)?;
        Ok(Box::new(WebshopEnv {
            session: Session::new(Arc::clone(&goal), options.show_attributes),
            shop,
            seeded,
            kind: options.goals,
            goal,
            form: options.observation,
            faithful: options.faithful,
            seed: task.seed,
            episode: 0,
        }))
    }

    fn check(&self, population: &Population) -> Result<()> {
        if !population.opponents.is_empty() {
            return Err(Error::invalid("population of webshop", "there are no opponents in a shop"));
        }
        population.seat_shares(1)?;
        for split in population.splits() {
            population.options_in(split).read::<WebshopOptions>(PLACE)?.shop_key()?;
        }
        Ok(())
    }

    /// A generated shop, split by goal.
    fn default_population(&self) -> Population {
        population(OptionMap::default())
    }

    fn populations(&self) -> Vec<(&'static str, Population)> {
        let official = || OptionMap::default().with("catalogue", "official");
        vec![
            ("generated", self.default_population()),
            ("official", population(official())),
            ("official-human", population(official().with("goals", "human"))),
            ("released", population(official().with("faithful", true))),
        ]
    }

    fn scripted_agents(&self) -> Vec<ScriptedAgentInfo> {
        vec![
            ScriptedAgentInfo::with_full_info(
                "told",
                "knows the goal's product and those options that the scoring counts, and goes straight there",
            ),
            ScriptedAgentInfo::new(
                "reader",
                "searches for the goal's words, buys the best matching title it has not bought before",
            ),
        ]
    }

    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        match query.name {
            "told" => Ok(Arc::new(Buyers { told: true })),
            "reader" => Ok(Arc::new(Buyers { told: false })),
            name => Err(unknown_scripted_agent(&self.scripted_agents(), name)),
        }
    }

    fn warnings(&self, population: &Population, split: &str) -> Result<Vec<String>> {
        let options: WebshopOptions = population.options_in(split).read(PLACE)?;
        match options.catalogue {
            Source::Generated => Ok(Vec::new()),
            Source::Official => Ok(OPEN.enter(&options)?.catalogue().findings().sentences()),
        }
    }

    fn conform(&self, golden: &Path, data: Option<&Path>) -> Result<Conformance> {
        conformance::conform(golden, data)
    }
}

/// Every split under its own name, those of the released code among them.
fn population(options: OptionMap) -> Population {
    let own = |(name, _): (&str, Split)| (name.to_owned(), OptionMap::default().with("split", name));
    Population { options, overrides: Split::ALL.map(own).into(), ..Population::without_opponents(ID) }
}

/// Makes buyers that go by rule.
struct Buyers {
    told: bool,
}

impl ScriptedAgentFactory for Buyers {
    fn make(&self, task: &Task, _seed: Seed) -> Box<dyn ScriptedAgent> {
        // A task without a shop has no environment either; whoever builds that hears why.
        match Errand::of(task) {
            Ok(Errand { shop, seeded, goal, options }) if self.told => {
                Box::new(Told::new(shop, seeded, goal, options.show_attributes))
            }
            _ => Box::new(Reader),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{action, shop::MOST_SEEDS};
    use super::*;

    fn settings(options: &OptionMap) -> WebshopOptions {
        options.read(PLACE).unwrap()
    }

    fn small(seed: u64) -> OptionMap {
        OptionMap::default().with("products", 30).with("catalogue_seed", seed)
    }

    /// One catalogue and one index, however many shop there, when they come and what they are sent for.
    #[test]
    fn buyers_of_one_shop_share_it() {
        let open = OpenShops(Mutex::default());
        let first = open.enter(&settings(&small(1))).unwrap();
        let other = small(1).with("split", "out-of-domain").with("observation", "text_rich").with("worker", 7);
        assert!(Arc::ptr_eq(&open.enter(&settings(&other)).unwrap(), &first));
        let second = std::thread::scope(|s| {
            let threads = [(); 4].map(|()| s.spawn(|| open.enter(&settings(&small(2))).unwrap()));
            threads.map(|t| t.join().unwrap())
        });
        assert!(second.iter().all(|shop| Arc::ptr_eq(shop, &second[0])), "also where many come at once");
        assert!(!Arc::ptr_eq(&second[0], &first));
    }

    /// Nothing grows with the number of shops opened, seeds asked for or pages looked at.
    #[test]
    fn what_is_kept_is_bounded() {
        let open = OpenShops(Mutex::default());
        for seed in 0..2 * MOST_OPEN as u64 {
            open.enter(&settings(&small(seed))).unwrap();
            assert!(open.0.lock().unwrap().len() <= MOST_OPEN);
        }
        let shop = open.enter(&settings(&small(0))).unwrap();
        let table = shop.goals(GoalKind::Synthetic);
        for seed in 0..3 * MOST_SEEDS as u32 {
            table.seeded(shop.catalogue(), seed);
            assert!(table.seeds_kept() <= MOST_SEEDS);
        }
        let seeded = table.seeded(shop.catalogue(), 0);
        let mut visit = Session::new(Arc::new(table.goal(shop.catalogue(), &seeded.draws, 0)), false);
        let product = shop.catalogue().product(0);
        let (search, value) = (format!("search[<q> {}]", product.query), &product.options[0].values[0]);
        for text in [search.as_str(), &format!("click[{}]", product.asin), &format!("click[{value}]")].repeat(500) {
            assert!(visit.act(&shop, &seeded.draws, &action::read(text).unwrap()), "{text}");
        }
        assert_eq!((visit.visited.len(), visit.chosen.len()), (1, 1), "each once, however often it was clicked");
        assert!(visit.results.len() <= super::super::MOST_RESULTS);
    }
}
