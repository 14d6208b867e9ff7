//! Tables of the generator: objects, receptacles and rooms.
//!
//! Object properties and possible receptacles agree with the official games, so that both require the same knowledge. Counts
//! per room and usual receptacles are rounded from the official games.

use super::scene::ObjectProperties;
use std::sync::LazyLock;

/// Portable objects: name; properties (`c`lean, `h`eat, coo`l`, `s`lice, `v`: contains objects); possible receptacles, usual
/// ones first.
const PICKUPABLE_OBJECTS: &str = "\
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
pub(super) const FIXTURES: [&str; 26] = [
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

/// All receptacle types.
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

/// A room type.
pub(super) struct RoomTemplate {
    /// Number of its first floor plan, as in the official numbering.
    pub(super) first_plan: u32,
    /// Receptacle types with minimum and maximum counts.
    pub(super) furniture: &'static [(&'static str, u32, u32)],
    /// Portable object types with maximum counts. A room contains each type with probability 0.7.
    pub(super) objects: &'static [(&'static str, u32)],
    /// Fixed objects, each at a location of its own.
    pub(super) fixtures: &'static [&'static str],
    /// Receptacle types that may hold a desk lamp; empty if the room has none.
    pub(super) lamps: &'static [&'static str],
}

/// The four room types.
pub(super) const ROOM_TEMPLATES: [RoomTemplate; 4] = [KITCHEN, LIVING_ROOM, BEDROOM, BATHROOM];

const KITCHEN: RoomTemplate = RoomTemplate {
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
    objects: &[
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

const LIVING_ROOM: RoomTemplate = RoomTemplate {
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
    objects: &[
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

const BEDROOM: RoomTemplate = RoomTemplate {
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
    objects: &[
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

const BATHROOM: RoomTemplate = RoomTemplate {
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
    objects: &[
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

/// A portable object type.
pub(super) struct ObjectTypeInfo {
    pub(super) name: &'static str,
    pub(super) properties: ObjectProperties,
    /// Receptacle types that can contain it, usual ones first.
    pub(super) receptacles: Vec<&'static str>,
}

/// All portable object types, sorted by name.
pub(super) static OBJECT_TYPES: LazyLock<Vec<ObjectTypeInfo>> =
    LazyLock::new(|| PICKUPABLE_OBJECTS.lines().map(parse_object_type).collect());

fn parse_object_type(line: &'static str) -> ObjectTypeInfo {
    let mut words = line.split(' ');
    let (name, letters) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let has = |letter| letters.contains(letter);
    let properties = ObjectProperties {
        pickupable: true,
        cleanable: has('c'),
        heatable: has('h'),
        coolable: has('l'),
        toggleable: false,
        sliceable: has('s'),
        receptacle_object: has('v'),
    };
    ObjectTypeInfo { name, properties, receptacles: words.collect() }
}

/// The object type with this name.
pub(super) fn find(name: &str) -> &'static ObjectTypeInfo {
    let at = OBJECT_TYPES.binary_search_by(|k| k.name.cmp(name)).expect("room tables name known object types");
    &OBJECT_TYPES[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_agree_with_each_other() {
        assert!(OBJECT_TYPES.is_sorted_by(|a, b| a.name < b.name));
        assert!(RECEPTACLES.is_sorted() && FIXTURES.is_sorted());
        for k in OBJECT_TYPES.iter() {
            assert!(!k.receptacles.is_empty() && k.receptacles.iter().all(|r| RECEPTACLES.contains(r)), "{}", k.name);
        }
        for room in &ROOM_TEMPLATES {
            assert!(room.furniture.iter().all(|(f, min, max)| RECEPTACLES.contains(f) && min <= max));
            assert!(room.fixtures.iter().all(|f| FIXTURES.contains(f)));
            assert!(room.lamps.iter().all(|l| room.furniture.iter().any(|(f, ..)| f == l)));
            // Every object type has a possible receptacle in every floor plan of its room.
            for (object, _) in room.objects {
                let always = |r: &&str| room.furniture.iter().any(|(f, min, _)| f == r && *min > 0);
                let possible = find(object).receptacles.iter().filter(|r| always(r)).count();
                assert!(possible > 0 || *object == "Plunger", "{object}");
            }
        }
    }
}
