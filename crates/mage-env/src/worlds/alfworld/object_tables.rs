//! What is found in which room?
//!
//! The generator's knowledge of homes, one line for each kind. What fits where and what can be done with what agrees with
//! the official games, so that generated and official games teach the same things; how many of each a room has, and where
//! they usually lie, are round numbers close to what is seen there.

use super::scene::Traits;
use std::sync::LazyLock;

/// Things that can be carried: name; traits (`c`lean, `h`eat, coo`l`, `s`lice, `v`essel); where they fit, usual places first.
const THINGS: &str = "\
AlarmClock - Desk Shelf SideTable Dresser DiningTable CounterTop
Apple chls Fridge CounterTop DiningTable Microwave GarbageCan SinkBasin SideTable
BaseballBat - Bed DiningTable SideTable
BasketBall - Bed Desk Dresser DiningTable SideTable
Book - Bed Desk Drawer CoffeeTable Sofa Dresser ArmChair DiningTable Cabinet CounterTop Ottoman Shelf SideTable
Bowl clv Cabinet Fridge CounterTop DiningTable SinkBasin Desk Shelf Dresser CoffeeTable Microwave SideTable
Box v CoffeeTable DiningTable Sofa Desk Shelf SideTable ArmChair Cabinet Dresser Ottoman
Bread hls CounterTop DiningTable Fridge GarbageCan Microwave SideTable
ButterKnife c CounterTop DiningTable Drawer SinkBasin SideTable
CD - Drawer Desk Dresser SideTable Shelf Safe Cabinet CounterTop DiningTable GarbageCan
Candle - CounterTop Toilet Cabinet Drawer Shelf Cart CoffeeTable DiningTable Dresser SideTable
CellPhone - Bed Desk Drawer SideTable Dresser Sofa ArmChair CoffeeTable CounterTop DiningTable Ottoman Safe Shelf
Cloth c BathtubBasin Cabinet CounterTop Drawer Shelf Cart LaundryHamper SinkBasin Toilet ArmChair Desk DiningTable Dresser GarbageCan SideTable
CreditCard - Drawer SideTable Sofa ArmChair CoffeeTable Desk Shelf Dresser CounterTop DiningTable Ottoman Safe
Cup chlv CounterTop Fridge Cabinet DiningTable SinkBasin Microwave Shelf SideTable
DishSponge c Drawer CounterTop Cabinet SinkBasin DiningTable BathtubBasin Cart GarbageCan Shelf SideTable Toilet
Egg chls Fridge CounterTop SinkBasin Microwave GarbageCan DiningTable SideTable
Fork c CounterTop DiningTable Drawer SinkBasin SideTable
Glassbottle - Cabinet CounterTop DiningTable Fridge SinkBasin Microwave Shelf
HandTowel - HandTowelHolder CounterTop Cabinet BathtubBasin Cart Drawer GarbageCan Shelf SideTable SinkBasin Toilet
Kettle c StoveBurner CounterTop Cabinet DiningTable SinkBasin Shelf SideTable
KeyChain - Drawer CoffeeTable SideTable Desk Shelf Sofa Dresser ArmChair CounterTop DiningTable Ottoman Safe
Knife c CounterTop DiningTable Drawer SinkBasin SideTable
Ladle c CounterTop Cabinet Drawer DiningTable SinkBasin
Laptop - Bed Desk CoffeeTable DiningTable Sofa Dresser ArmChair CounterTop Ottoman SideTable
Lettuce cls CounterTop Fridge DiningTable SinkBasin GarbageCan SideTable
Mug chlv CounterTop Cabinet CoffeeMachine Fridge Desk DiningTable Dresser Microwave Shelf SideTable SinkBasin
Newspaper - CoffeeTable Sofa Shelf DiningTable SideTable ArmChair Cabinet Drawer Dresser GarbageCan Ottoman
Pan clv StoveBurner CounterTop Cabinet DiningTable Fridge SideTable SinkBasin
Pen - Desk Shelf Drawer SideTable Dresser CoffeeTable CounterTop DiningTable GarbageCan
Pencil - Drawer Desk Shelf SideTable Dresser CoffeeTable CounterTop DiningTable GarbageCan
PepperShaker - Cabinet CounterTop DiningTable Drawer Shelf SideTable
Pillow - Bed Sofa ArmChair Ottoman
Plate chlv Cabinet CounterTop DiningTable Fridge SinkBasin CoffeeTable Dresser Microwave Shelf SideTable
Plunger - Cabinet Cart
Pot clv StoveBurner CounterTop Fridge Cabinet DiningTable Shelf SideTable SinkBasin
Potato chls CounterTop Fridge DiningTable Microwave SinkBasin GarbageCan SideTable
RemoteControl - CoffeeTable Sofa SideTable Drawer ArmChair CounterTop Desk DiningTable Dresser Ottoman Shelf
SaltShaker - Cabinet CounterTop DiningTable Drawer Shelf SideTable
SoapBar c CounterTop Toilet SinkBasin Cabinet Drawer BathtubBasin Cart GarbageCan Shelf SideTable
SoapBottle - CounterTop Cabinet Toilet GarbageCan Shelf Cart DiningTable Drawer SideTable
Spatula c CounterTop DiningTable Drawer SinkBasin SideTable
Spoon c CounterTop Drawer DiningTable SinkBasin SideTable
SprayBottle - Toilet CounterTop Cabinet GarbageCan Shelf Cart DiningTable Drawer Dresser SideTable
Statue - CoffeeTable Shelf DiningTable SideTable Dresser CounterTop Desk Safe
TennisRacket - Bed Desk DiningTable Dresser SideTable
TissueBox - CoffeeTable CounterTop Shelf Desk Drawer Cabinet Cart DiningTable Dresser GarbageCan SideTable TVStand Toilet
ToiletPaper - CounterTop Toilet ToiletPaperHanger Cabinet GarbageCan Cart Drawer Dresser Shelf SideTable
Tomato chls Fridge CounterTop DiningTable GarbageCan SinkBasin Microwave SideTable
Towel - TowelHolder
Vase - Shelf CoffeeTable DiningTable SideTable Dresser Cabinet CounterTop Desk Safe
Watch - CoffeeTable Drawer SideTable DiningTable Desk Dresser Safe Shelf
WateringCan - Shelf CoffeeTable Cabinet Desk DiningTable Drawer Dresser SideTable
WineBottle l Cabinet CounterTop DiningTable GarbageCan Fridge Shelf SideTable
";

/// Things that stay where they are.
pub(super) const FIXED: [&str; 26] = [
    "Bathtub",
    "Blinds",
    "Boots",
    "Chair",
    "Curtains",
    "DeskLamp",
    "FloorLamp",
    "Footstool",
    "HousePlant",
    "LaundryHamperLid",
    "LightSwitch",
    "Mirror",
    "Painting",
    "PaperTowel",
    "PaperTowelRoll",
    "Poster",
    "ScrubBrush",
    "ShowerDoor",
    "ShowerGlass",
    "Sink",
    "StoveKnob",
    "TeddyBear",
    "Television",
    "ToiletPaperRoll",
    "Towel",
    "Window",
];

/// All kinds of receptacle.
pub(super) const RECEPTACLES: [&str; 30] = [
    "ArmChair",
    "BathtubBasin",
    "Bed",
    "Cabinet",
    "Cart",
    "CoffeeMachine",
    "CoffeeTable",
    "CounterTop",
    "Desk",
    "DiningTable",
    "Drawer",
    "Dresser",
    "Fridge",
    "GarbageCan",
    "HandTowelHolder",
    "LaundryHamper",
    "Microwave",
    "Ottoman",
    "PaintingHanger",
    "Safe",
    "Shelf",
    "SideTable",
    "SinkBasin",
    "Sofa",
    "StoveBurner",
    "TVStand",
    "Toaster",
    "Toilet",
    "ToiletPaperHanger",
    "TowelHolder",
];

/// Receptacles with a door or lid.
pub(super) const OPENABLE: [&str; 5] = ["Cabinet", "Drawer", "Fridge", "Microwave", "Safe"];

/// A sort of room.
pub(super) struct Room {
    /// Plans of it are numbered from here, as the official floor plans are.
    pub(super) first_plan: u32,
    /// Furniture, with how many at least and at most.
    pub(super) furniture: &'static [(&'static str, u32, u32)],
    /// Things that can be carried, with how many at most; more than half of the kinds are there at a time.
    pub(super) things: &'static [(&'static str, u32)],
    /// Things that stay, at places of their own.
    pub(super) fixtures: &'static [&'static str],
    /// Where a desk lamp may stand; nowhere if empty.
    pub(super) lamps: &'static [&'static str],
}

/// The four sorts of room.
pub(super) const ROOMS: [Room; 4] = [KITCHEN, LIVING_ROOM, BEDROOM, BATHROOM];

const KITCHEN: Room = Room {
    first_plan: 1,
    furniture: &[
        ("Cabinet", 4, 14),
        ("CoffeeMachine", 1, 1),
        ("CounterTop", 1, 3),
        ("DiningTable", 0, 1),
        ("Drawer", 2, 8),
        ("Fridge", 1, 1),
        ("GarbageCan", 1, 1),
        ("Microwave", 1, 1),
        ("Shelf", 0, 2),
        ("SideTable", 0, 1),
        ("SinkBasin", 1, 1),
        ("StoveBurner", 4, 4),
        ("Toaster", 1, 1),
    ],
    things: &[
        ("Apple", 3),
        ("Bowl", 3),
        ("Bread", 2),
        ("ButterKnife", 2),
        ("Cup", 3),
        ("DishSponge", 3),
        ("Egg", 3),
        ("Fork", 3),
        ("Glassbottle", 2),
        ("Kettle", 2),
        ("Knife", 2),
        ("Ladle", 2),
        ("Lettuce", 3),
        ("Mug", 3),
        ("Pan", 2),
        ("PepperShaker", 3),
        ("Plate", 3),
        ("Pot", 2),
        ("Potato", 3),
        ("SaltShaker", 3),
        ("SoapBottle", 2),
        ("Spatula", 3),
        ("Spoon", 3),
        ("Tomato", 3),
        ("Vase", 2),
        ("WineBottle", 2),
    ],
    fixtures: &["Chair", "LightSwitch", "Sink", "StoveKnob", "StoveKnob", "Window"],
    lamps: &[],
};

const LIVING_ROOM: Room = Room {
    first_plan: 201,
    furniture: &[
        ("ArmChair", 1, 2),
        ("Cabinet", 0, 4),
        ("CoffeeTable", 1, 2),
        ("DiningTable", 0, 1),
        ("Drawer", 1, 8),
        ("Dresser", 0, 1),
        ("GarbageCan", 1, 1),
        ("Ottoman", 0, 1),
        ("Shelf", 0, 6),
        ("SideTable", 1, 3),
        ("Sofa", 1, 2),
        ("TVStand", 0, 1),
    ],
    things: &[
        ("Book", 3),
        ("Bowl", 2),
        ("Box", 2),
        ("CellPhone", 3),
        ("CreditCard", 3),
        ("KeyChain", 3),
        ("Laptop", 2),
        ("Newspaper", 3),
        ("Pen", 2),
        ("Pencil", 2),
        ("Pillow", 2),
        ("Plate", 2),
        ("RemoteControl", 3),
        ("Statue", 3),
        ("TissueBox", 2),
        ("Vase", 3),
        ("Watch", 3),
        ("WateringCan", 1),
    ],
    fixtures: &["FloorLamp", "LightSwitch", "Painting", "Painting", "Television", "Window", "Window"],
    lamps: &["SideTable", "CoffeeTable"],
};

const BEDROOM: Room = Room {
    first_plan: 301,
    furniture: &[
        ("ArmChair", 0, 1),
        ("Bed", 1, 2),
        ("Cabinet", 0, 2),
        ("Desk", 1, 2),
        ("Drawer", 2, 9),
        ("Dresser", 0, 1),
        ("GarbageCan", 1, 1),
        ("LaundryHamper", 0, 1),
        ("Safe", 0, 1),
        ("Shelf", 1, 6),
        ("SideTable", 0, 2),
    ],
    things: &[
        ("AlarmClock", 3),
        ("BaseballBat", 1),
        ("BasketBall", 1),
        ("Book", 3),
        ("Bowl", 2),
        ("Box", 1),
        ("CD", 3),
        ("CellPhone", 3),
        ("Cloth", 2),
        ("CreditCard", 3),
        ("KeyChain", 3),
        ("Laptop", 2),
        ("Mug", 2),
        ("Pen", 3),
        ("Pencil", 3),
        ("Pillow", 2),
        ("Statue", 2),
        ("TennisRacket", 1),
        ("TissueBox", 2),
        ("Vase", 2),
        ("Watch", 2),
    ],
    fixtures: &["Blinds", "Chair", "LightSwitch", "Mirror", "Poster", "Window"],
    lamps: &["Desk", "Dresser", "SideTable", "Shelf"],
};

const BATHROOM: Room = Room {
    first_plan: 401,
    furniture: &[
        ("BathtubBasin", 0, 1),
        ("Cabinet", 0, 6),
        ("Cart", 0, 1),
        ("CounterTop", 1, 2),
        ("Drawer", 0, 6),
        ("Dresser", 0, 1),
        ("GarbageCan", 1, 1),
        ("HandTowelHolder", 1, 2),
        ("Shelf", 0, 3),
        ("SideTable", 0, 1),
        ("SinkBasin", 1, 2),
        ("Toilet", 1, 1),
        ("ToiletPaperHanger", 1, 1),
        ("TowelHolder", 1, 1),
    ],
    things: &[
        ("Candle", 3),
        ("Cloth", 3),
        ("DishSponge", 3),
        ("HandTowel", 2),
        ("Plunger", 1),
        ("SoapBar", 3),
        ("SoapBottle", 3),
        ("SprayBottle", 3),
        ("TissueBox", 2),
        ("ToiletPaper", 3),
        ("Towel", 1),
    ],
    fixtures: &["LightSwitch", "Mirror", "ScrubBrush", "ShowerDoor", "Sink", "Window"],
    lamps: &[],
};

/// A kind of thing that can be carried.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) traits: Traits,
    /// Kinds of receptacle it fits, usual ones first.
    pub(super) fits: Vec<&'static str>,
}

/// All kinds of things that can be carried, by name.
pub(super) static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| THINGS.lines().map(kind).collect());

fn kind(line: &'static str) -> Kind {
    let mut words = line.split(' ');
    let (name, letters) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let has = |letter| letters.contains(letter);
    let traits = Traits {
        pickupable: true,
        cleanable: has('c'),
        heatable: has('h'),
        coolable: has('l'),
        toggleable: false,
        sliceable: has('s'),
        vessel: has('v'),
    };
    Kind { name, traits, fits: words.collect() }
}

/// The kind of this name.
pub(super) fn find(name: &str) -> &'static Kind {
    let at = KINDS.binary_search_by(|k| k.name.cmp(name)).expect("rooms hold known things");
    &KINDS[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_agree_with_each_other() {
        assert!(KINDS.is_sorted_by(|a, b| a.name < b.name));
        assert!(RECEPTACLES.is_sorted() && FIXED.is_sorted());
        for k in KINDS.iter() {
            assert!(!k.fits.is_empty() && k.fits.iter().all(|r| RECEPTACLES.contains(r)), "{}", k.name);
        }
        for room in &ROOMS {
            assert!(room.furniture.iter().all(|(f, least, most)| RECEPTACLES.contains(f) && least <= most));
            assert!(room.fixtures.iter().all(|f| FIXED.contains(f)));
            assert!(room.lamps.iter().all(|l| room.furniture.iter().any(|(f, ..)| f == l)));
            // Every kind of thing has somewhere to lie in every plan of its room.
            for (thing, _) in room.things {
                let always = |r: &&str| room.furniture.iter().any(|(f, least, _)| f == r && *least > 0);
                let homes = find(thing).fits.iter().filter(|r| always(r)).count();
                assert!(homes > 0 || *thing == "Plunger", "{thing}");
            }
        }
    }
}
