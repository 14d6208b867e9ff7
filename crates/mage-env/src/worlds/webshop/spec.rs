//! Registration of the WebShop environment.

use super::{
    compact, conformance,
    env::WebshopEnv,
    goals::{GoalKind, ShoppingGoal},
    options::{self, CatalogueSource, ShopKey, WebshopOptions},
    scripted_agents::{HeuristicShopper, OracleShopper},
    session::Session,
    shop::{SeededGoals, Shop},
    splits::{GoalSplit, VALIDATION_GOALS, reference_seed},
};
use crate::{
    Conformance, Env, EnvId, EnvInfo, EnvSpec, Error, OptionMap, Population, Result, ScriptedAgent,
    ScriptedAgentFactory, ScriptedAgentInfo, ScriptedAgentQuery, Seed, Task, registry::unknown_scripted_agent,
    without_replacement::without_replacement,
};
use rand::RngExt;
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Creates WebShop environments.
#[derive(Clone, Copy, Debug, Default)]
pub struct WebshopSpec;

/// Cache of the most recently opened shops.
struct ShopCache(Mutex<Vec<(ShopKey, Arc<Shop>)>>);

/// Process-wide cache: all environments of a shop share its catalogue and index.
static SHOP_CACHE: ShopCache = ShopCache(Mutex::new(Vec::new()));

/// Maximum number of cached shops. An evicted shop lives as long as an environment uses it.
const MAX_OPEN_SHOPS: usize = 4;

const ID: EnvId = EnvId::new("webshop");
const OPTIONS_CONTEXT: &str = "options of webshop";

/// Shop, goal and options of a task.
struct ShopTask {
    shop: Arc<Shop>,
    seeded: Arc<SeededGoals>,
    goal: Arc<ShoppingGoal>,
    options: WebshopOptions,
}

impl ShopCache {
    /// The shop for these options.
    fn get_or_open(&self, options: &WebshopOptions) -> Result<Arc<Shop>> {
        let key = options.shop_key()?;
        // Held while opening, so that concurrent callers share one shop instead of opening several.
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, shop)) = open.iter().find(|(k, _)| *k == key) {
            return Ok(Arc::clone(shop));
        }
        let shop = Arc::new(key.open()?);
        if open.len() == MAX_OPEN_SHOPS {
            open.remove(0);
        }
        open.push((key, Arc::clone(&shop)));
        Ok(shop)
    }
}

/// Error that explains why a catalogue has no goals.
fn no_goals(shop: &Shop, options: &WebshopOptions) -> Error {
    let products = shop.catalogue().products();
    let count = products.len();
    let problem = match (options.goals, options.catalogue) {
        (GoalKind::Human, CatalogueSource::Generated) => {
            "generated products have no instructions written by people; set goals=synthetic or catalogue=official"
                .to_owned()
        }
        (GoalKind::Human, CatalogueSource::Official) if products.iter().all(|p| p.human_instructions.is_empty()) => {
            format!("items_human_ins*.json has no instruction for any of the {count} products; set goals=synthetic")
        }
        (GoalKind::Human, CatalogueSource::Official) => {
            format!(
                "no instruction in items_human_ins*.json for the {count} products has attributes, so none can be scored"
            )
        }
        (GoalKind::Synthetic, CatalogueSource::Generated) => {
            "none of the generated products has an instruction; increase `products`".to_owned()
        }
        (GoalKind::Synthetic, CatalogueSource::Official) => {
            match products.iter().filter(|p| p.instruction.is_some()).count() {
                0 => {
                    format!("none of the {count} products has an `instruction` in items_ins_v2*.json")
                }
                with_instruction => format!(
                    "{with_instruction} of the {count} products have an `instruction`, but each has an option without values in \
                 `customization_options`, so there are no option combinations"
                ),
            }
        }
    };
    Error::invalid("goals of webshop", problem)
}

/// The goals of the split in the catalogue's order; `None` for the splits of the released code, in which every worker
/// has its own list.
fn split_goals<'s>(shop: &'s Shop, options: &WebshopOptions) -> Result<Option<&'s [u32]>> {
    let (table, catalogue) = (shop.goals(options.goals), shop.catalogue());
    if table.len() == 0 {
        return Err(no_goals(shop, options));
    }
    let goals = table.in_split(catalogue, options.split);
    if options.goal_index.is_none() && goals.is_some_and(<[u32]>::is_empty) {
        let problem = format!(
            "contains none of the catalogue's {} goals ({}); choose another split or a larger catalogue",
            table.len(),
            table.split_sizes(catalogue)
        );
        return Err(Error::invalid(format!("split {}", options.split.name()), problem));
    }
    Ok(goals)
}

impl ShopTask {
    fn new(task: &Task) -> Result<Self> {
        let options: WebshopOptions = task.options.read(OPTIONS_CONTEXT)?;
        let shop = SHOP_CACHE.get_or_open(&options)?;
        let table = shop.goals(options.goals);
        let seed = task.seed.child("goal");
        let catalogue = shop.catalogue();
        let (seeded, number) = match (options.goal_index, split_goals(&shop, &options)?) {
            (Some(index), _) => {
                let seeded = table.seeded(catalogue, options.goal_seed);
                let number = seeded.order.get(index as usize).copied();
                let number = number.ok_or_else(|| {
                    Error::invalid(
                        "option goal_index",
                        format!("no goal {index}; valid indices are 0 to {}", table.len() - 1),
                    )
                })?;
                (seeded, number)
            }
            (None, Some(goals)) => {
                let number = goals[seed.rng().random_range(0..goals.len())];
                (table.seeded(catalogue, options.goal_seed), number)
            }
            (None, None) => {
                let seeded = table.seeded(catalogue, reference_seed(options.split, seed.child("worker").value()));
                let validation = VALIDATION_GOALS.min(table.len());
                let goals =
                    if options.split == GoalSplit::ReferenceTrain { validation..table.len() } else { 0..validation };
                if goals.is_empty() {
                    return Err(Error::invalid(
                        "option split",
                        format!(
                            "reference-train starts at goal {VALIDATION_GOALS}, but the catalogue has only {} goals",
                            table.len()
                        ),
                    ));
                }
                let number = seeded.order[seed.rng().random_range(goals)];
                (seeded, number)
            }
        };
        let goal = Arc::new(table.goal(catalogue, &seeded.prices, number));
        Ok(ShopTask { seeded, goal, options, shop })
    }
}

impl EnvSpec for WebshopSpec {
    fn id(&self) -> EnvId {
        ID
    }

    fn info(&self) -> EnvInfo {
        EnvInfo {
            title: "WebShop".to_owned(),
            summary: "search, compare and buy a product that matches an instruction".to_owned(),
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
        let ShopTask { shop, seeded, goal, options } = ShopTask::new(task)?;
        Ok(Box::new(WebshopEnv {
            session: Session::new(Arc::clone(&goal), options.show_attributes),
            shop,
            seeded,
            kind: options.goals,
            goal,
            format: options.observation,
            faithful: options.faithful,
            seed: task.seed,
            episode: 0,
        }))
    }

    fn check(&self, population: &Population) -> Result<()> {
        if !population.opponents.is_empty() {
            return Err(Error::invalid(
                "population of webshop",
                "WebShop is a single-player environment, but the population has opponents",
            ));
        }
        population.seat_shares(1)?;
        for split in population.splits() {
            population.options_in(split).read::<WebshopOptions>(OPTIONS_CONTEXT)?.shop_key()?;
        }
        Ok(())
    }

    /// A generated catalogue, split by goal.
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
                "oracle",
                "knows the target product and the options that the scoring counts, and buys it directly",
            ),
            ScriptedAgentInfo::new(
                "heuristic",
                "searches for the instruction and buys the best matching title that it has not bought before",
            ),
        ]
    }

    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        match query.name {
            "oracle" => Ok(Arc::new(ShopperFactory { full_info: true })),
            "heuristic" => Ok(Arc::new(ShopperFactory { full_info: false })),
            name => Err(unknown_scripted_agent(&self.scripted_agents(), name)),
        }
    }

    /// Assigns the goals of a split. The splits of the released code sample with replacement, as it does.
    fn assign_without_replacement(&self, tasks: &mut [Task], first: u64, seed: Seed) -> Result<()> {
        let Some(task) = tasks.first() else { return Ok(()) };
        let options: WebshopOptions = task.options.read(OPTIONS_CONTEXT)?;
        let shop = SHOP_CACHE.get_or_open(&options)?;
        let (None, Some(goals)) = (options.goal_index, split_goals(&shop, &options)?) else { return Ok(()) };
        // `goal_index` refers to the shuffled list.
        let order = &shop.goals(options.goals).seeded(shop.catalogue(), options.goal_seed).order;
        let mut index_of = vec![0; order.len()];
        order.iter().enumerate().for_each(|(index, number)| index_of[*number as usize] = index);
        for (task, i) in tasks.iter_mut().zip(without_replacement(goals.len(), first, seed.child("goals"))) {
            task.options.0.insert("goal_index".to_owned(), index_of[goals[i] as usize].into());
        }
        Ok(())
    }

    fn warnings(&self, population: &Population, split: &str) -> Result<Vec<String>> {
        let options: WebshopOptions = population.options_in(split).read(OPTIONS_CONTEXT)?;
        match options.catalogue {
            CatalogueSource::Generated => Ok(Vec::new()),
            CatalogueSource::Official => Ok(SHOP_CACHE.get_or_open(&options)?.catalogue().warnings().messages()),
        }
    }

    fn conform(&self, golden: &Path, data: Option<&Path>) -> Result<Conformance> {
        conformance::conform(golden, data)
    }
}

/// All splits under their own names, including those of the released code.
fn population(options: OptionMap) -> Population {
    let split = |(name, _): (&str, GoalSplit)| (name.to_owned(), OptionMap::default().with("split", name));
    Population { options, overrides: GoalSplit::ALL.map(split).into(), ..Population::without_opponents(ID) }
}

/// Factory of the scripted agents.
struct ShopperFactory {
    full_info: bool,
}

impl ScriptedAgentFactory for ShopperFactory {
    fn make(&self, task: &Task, _seed: Seed) -> Box<dyn ScriptedAgent> {
        // An invalid task is reported when its environment is built; this method cannot fail.
        match ShopTask::new(task) {
            Ok(ShopTask { shop, seeded, goal, options }) if self.full_info => {
                Box::new(OracleShopper::new(shop, seeded, goal, options.show_attributes))
            }
            _ => Box::new(HeuristicShopper),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{action, shop::MAX_CACHED_SEEDS};
    use super::*;

    fn parsed(options: &OptionMap) -> WebshopOptions {
        options.read(OPTIONS_CONTEXT).unwrap()
    }

    fn small(seed: u64) -> OptionMap {
        OptionMap::default().with("products", 30).with("catalogue_seed", seed)
    }

    /// Sessions share a catalogue and an index, regardless of split, format and concurrency.
    #[test]
    fn sessions_of_one_shop_share_it() {
        let open = ShopCache(Mutex::default());
        let first = open.get_or_open(&parsed(&small(1))).unwrap();
        let other = small(1).with("split", "out-of-domain").with("observation", "text_rich").with("goal_seed", 7);
        assert!(Arc::ptr_eq(&open.get_or_open(&parsed(&other)).unwrap(), &first));
        let second = std::thread::scope(|s| {
            let threads = [(); 4].map(|()| s.spawn(|| open.get_or_open(&parsed(&small(2))).unwrap()));
            threads.map(|t| t.join().unwrap())
        });
        assert!(second.iter().all(|shop| Arc::ptr_eq(shop, &second[0])), "also for concurrent callers");
        assert!(!Arc::ptr_eq(&second[0], &first));
    }

    /// No cache grows with the number of shops, seeds or pages.
    #[test]
    fn caches_are_bounded() {
        let open = ShopCache(Mutex::default());
        for seed in 0..2 * MAX_OPEN_SHOPS as u64 {
            open.get_or_open(&parsed(&small(seed))).unwrap();
            assert!(open.0.lock().unwrap().len() <= MAX_OPEN_SHOPS);
        }
        let shop = open.get_or_open(&parsed(&small(0))).unwrap();
        let table = shop.goals(GoalKind::Synthetic);
        for seed in 0..3 * MAX_CACHED_SEEDS as u32 {
            table.seeded(shop.catalogue(), seed);
            assert!(table.cached_seeds() <= MAX_CACHED_SEEDS);
        }
        let seeded = table.seeded(shop.catalogue(), 0);
        let mut session = Session::new(Arc::new(table.goal(shop.catalogue(), &seeded.prices, 0)), false);
        let product = shop.catalogue().product(0);
        let (search, value) = (format!("search[<q> {}]", product.query), &product.options[0].values[0]);
        for text in [search.as_str(), &format!("click[{}]", product.asin), &format!("click[{value}]")].repeat(500) {
            assert!(session.act(&shop, &seeded.prices, &action::parse(text).unwrap()), "{text}");
        }
        assert_eq!(
            (session.visited.len(), session.chosen.len()),
            (1, 1),
            "each is stored once, however often it is clicked"
        );
        assert!(session.results.len() <= super::super::MAX_RESULTS);
    }
}
