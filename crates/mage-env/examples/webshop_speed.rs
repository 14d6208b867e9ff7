//! Throughput and memory use of WebShop.
//!
//! `webshop_speed replay RECORDINGS DATA [REPEAT]` executes the actions of recorded episodes (JSON lines, plain or gzipped) on
//! the official files in DATA. `webshop_speed generated [EPISODES]` plays random episodes in a generated shop.
//! `webshop_speed write PRODUCTS DIR` writes a generated catalogue in the official format, with text lengths and a vocabulary
//! size as in the official set; `webshop_speed read DIR` reads and indexes it in a fresh process. Each prints one JSON
//! object.

use flate2::read::MultiGzDecoder;
use mage_env::{
    EnvId, EnvSpec, OptionMap, Rng, Seed, Task,
    webshop::{OfficialFiles, Product, ReadOptions, Shop, WebshopSpec, generate},
};
use rand::{RngExt, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{
    error::Error,
    fs::File,
    hint::black_box,
    io::{BufRead, BufReader, BufWriter, Read, Write},
    path::Path,
    time::Instant,
};

type Outcome = Result<Value, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let report = match args.first().map(String::as_str) {
        Some("replay") if args.len() >= 3 => replay(Path::new(&args[1]), &args[2], argument(3, 20)?)?,
        Some("generated") => generated(argument(1, 5000)?)?,
        Some("write") if args.len() == 3 => write(argument(1, 0)?, Path::new(&args[2]))?,
        Some("read") if args.len() == 2 => read(Path::new(&args[1]))?,
        _ => {
            return Err("usage: webshop_speed replay RECORDINGS DATA [REPEAT] | generated [EPISODES] | \
                        write PRODUCTS DIR | read DIR"
                .into());
        }
    };
    let mut out = std::io::stdout();
    writeln!(out, "{report}")?;
    Ok(())
}

fn task(options: OptionMap, seed: u64) -> Task {
    Task { env: EnvId::new("webshop"), options, opponent: None, seat: 0, seed: Seed::new(seed) }
}

fn replay(recordings: &Path, data: &str, repeat: usize) -> Outcome {
    let mut text = String::new();
    let mut file = File::open(recordings)?;
    if recordings.extension().is_some_and(|e| e == "gz") {
        MultiGzDecoder::new(file).read_to_string(&mut text)?;
    } else {
        file.read_to_string(&mut text)?;
    }
    let env_spec = WebshopSpec;
    let options = OptionMap::default().with("catalogue", "official").with("data", data).with("observation", "text");
    let mut episodes = Vec::new();
    for line in text.lines() {
        let episode: Value = serde_json::from_str(line)?;
        let env = env_spec.build(&task(options.clone().with("goal_index", episode["goal_index"].clone()), 0))?;
        let steps = episode["steps"].as_array().ok_or("an episode without steps")?;
        let actions: Vec<String> = steps.iter().filter_map(|s| s["action"].as_str()).map(str::to_owned).collect();
        episodes.push((env, actions));
    }
    let (mut steps, mut seen) = (0_u64, 0);
    let clock = Instant::now();
    for _ in 0..repeat {
        for (env, actions) in &mut episodes {
            black_box(env.reset(0));
            for action in actions.iter() {
                let step = env.step(&env.parse(action));
                // The original's step includes the clickables.
                seen += step.observation.text.len() + black_box(env.legal()).map_or(0, |l| l.len());
                steps += 1;
            }
        }
    }
    let seconds = clock.elapsed().as_secs_f64();
    Ok(
        json!({ "episodes": episodes.len() * repeat, "steps": steps, "seconds": seconds, "steps_per_s": steps as f64 / seconds, "seen": seen }),
    )
}

fn generated(episodes: usize) -> Outcome {
    let env_spec = WebshopSpec;
    let mut env = env_spec.build(&task(OptionMap::default(), 0))?;
    let mut rng = Seed::new(1).rng();
    let mut steps = 0_u64;
    let clock = Instant::now();
    for _ in 0..episodes {
        black_box(env.reset(0));
        for _ in 0..12 {
            let Some(action) = env.legal().and_then(|l| l.choose(&mut rng).cloned()) else { break };
            steps += 1;
            if black_box(env.step(&env.parse(&action))).end.is_some() {
                break;
            }
        }
    }
    let seconds = clock.elapsed().as_secs_f64();
    Ok(json!({ "episodes": episodes, "steps": steps, "seconds": seconds, "steps_per_s": steps as f64 / seconds }))
}

fn write(products: usize, folder: &Path) -> Outcome {
    std::fs::create_dir_all(folder)?;
    let (list, attributes) = (folder.join("items_shuffle.json"), folder.join("items_ins_v2.json"));
    let mut rng = Seed::new(0).child("words").rng();
    let mut with_long_texts = |p: &Product| Product {
        title: format!("{} {}", p.title, sentence(11, &mut rng)).into(),
        description: format!("{} {}", p.description, sentence(40, &mut rng)).into(),
        bullets: p.bullets.iter().map(|b| format!("{b} {}", sentence(21, &mut rng)).into()).collect(),
        ..p.clone()
    };
    let products: Vec<Product> = generate(Seed::new(0), products).products().iter().map(&mut with_long_texts).collect();
    write_official(&products, &list, &attributes)?;
    Ok(json!({ "products": products.len(), "file_mb": std::fs::metadata(&list)?.len() as f64 / 1e6 }))
}

/// Vocabulary size.
const VOCABULARY: f64 = 200_000.0;

/// A text of `words` words with Zipf-distributed frequencies.
fn sentence(words: usize, rng: &mut Rng) -> String {
    let rank = |rng: &mut Rng| VOCABULARY.powf(rng.random::<f64>()) as u64;
    (0..words).map(|_| word(rank(rng))).collect::<Vec<_>>().join(" ")
}

/// The word of a frequency rank: syllables, shorter for frequent words. One in nine is a measurement, as in product texts.
fn word(rank: u64) -> String {
    const OPENINGS: [&str; 20] =
        ["b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "ch", "st"];
    const VOWELS: [&str; 6] = ["a", "e", "i", "o", "u", "ou"];
    if rank % 9 == 8 {
        return format!("{}cm", rank / 9);
    }
    let mut rest = rank;
    let mut word = String::new();
    loop {
        word.push_str(OPENINGS[(rest % 20) as usize]);
        word.push_str(VOWELS[(rest / 20 % 6) as usize]);
        rest /= 120;
        if rest == 0 {
            return word + ["n", "r", "l", "x"][(rank % 4) as usize];
        }
    }
}

fn read(folder: &Path) -> Outcome {
    let files = OfficialFiles::in_folder(folder)?;
    let megabytes = std::fs::metadata(&files.products)?.len() as f64 / 1e6;
    let before = memory("VmRSS:");
    let clock = Instant::now();
    let catalogue = files.read(ReadOptions { limit: None, skip_duplicates: false })?;
    let read_s = clock.elapsed().as_secs_f64();
    let (after_reading, read_peak) = (memory("VmRSS:"), memory("VmHWM:"));
    let clock = Instant::now();
    let shop = Shop::new(catalogue)?;
    let index_s = clock.elapsed().as_secs_f64();
    let (after_indexing, peak) = (memory("VmRSS:"), memory("VmHWM:"));
    let clock = Instant::now();
    const SEARCHES: usize = 200;
    for product in shop.catalogue().products().iter().take(SEARCHES) {
        black_box(shop.search(&product.title.to_lowercase()));
    }
    let search_ms = clock.elapsed().as_secs_f64() * 1000.0 / SEARCHES as f64;
    Ok(json!({
        "products": shop.catalogue().products().len(),
        "file_mb": megabytes,
        "read_s": read_s,
        "read_mb_per_s": megabytes / read_s,
        "index_s": index_s,
        "terms": shop.index().terms(),
        "tokens": shop.index().tokens(),
        "search_ms": search_ms,
        "index_bytes_mb": shop.index().bytes() as f64 / 1e6,
        "resident_mb": { "before": before / 1e6, "read": after_reading / 1e6, "indexed": after_indexing / 1e6 },
        "peak_mb": { "read": read_peak / 1e6, "indexed": peak / 1e6 },
    }))
}

/// Writes a catalogue in the official format.
fn write_official(products: &[Product], list: &Path, attributes: &Path) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(File::create(list)?);
    let mut entries = serde_json::Map::new();
    for (i, p) in products.iter().enumerate() {
        let options: serde_json::Map<String, Value> = p
            .options
            .iter()
            .map(|o| (o.name.to_string(), o.values.iter().map(|v| json!({ "value": v, "image": null })).collect()))
            .collect();
        let product = json!({
            "asin": p.asin, "name": p.title, "full_description": p.description, "small_description": p.bullets,
            "pricing": p.price.tag(), "images": [], "product_category": p.product_category, "average_rating": "",
            "customization_options": options, "category": p.category, "query": p.query, "page": 1,
        });
        write!(out, "{}{product}", if i == 0 { "[" } else { ",\n" })?;
        let mut entry = json!({ "attributes": p.attributes });
        if let Some(instruction) = &p.instruction {
            entry["instruction"] = json!(instruction.text);
            entry["instruction_attributes"] = json!(instruction.attributes);
        }
        entries.insert(p.asin.to_string(), entry);
    }
    writeln!(out, "]")?;
    serde_json::to_writer(BufWriter::new(File::create(attributes)?), &entries)?;
    Ok(())
}

/// A value of `/proc/self/status` in bytes; NaN if unavailable.
fn memory(line: &str) -> f64 {
    let Ok(file) = File::open("/proc/self/status") else { return f64::NAN };
    let found = BufReader::new(file).lines().map_while(Result::ok).find(|l| l.starts_with(line));
    let kilobytes = found.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok());
    kilobytes.map_or(f64::NAN, |k| k * 1024.0)
}
