//! What does the generated shop deal in? Five departments, fifty kinds of thing, and the words they are described with.

/// One kind of thing.
pub(super) struct Kind {
    /// Many of them, as one would search for.
    pub(super) many: &'static str,
    /// One of them, as titles name it.
    pub(super) one: &'static str,
    /// The innermost shelves.
    pub(super) shelf: &'static str,
    /// What can be chosen about it.
    pub(super) choices: &'static [Values],
    /// What it costs, from and to.
    pub(super) price: (u32, u32),
}

/// One department.
pub(super) struct Department {
    pub(super) category: &'static str,
    pub(super) shelf: &'static str,
    pub(super) kinds: &'static [Kind],
    /// What its goods may be like.
    pub(super) attributes: &'static [&'static str],
    /// What they are for.
    pub(super) uses: &'static [&'static str],
}

/// Something to choose, and the values there are.
#[derive(Clone, Copy)]
pub(super) struct Values {
    pub(super) name: &'static str,
    pub(super) all: &'static [&'static str],
}

const COLOR: Values = Values {
    name: "color",
    all: &[
        "black",
        "white",
        "navy",
        "olive",
        "dusty rose",
        "light grey",
        "deep purple",
        "forest green",
        "sky blue",
        "beige",
        "burgundy",
        "mustard",
        "coral",
        "charcoal",
        "teal",
        "cream",
    ],
};
const SIZE: Values = Values { name: "size", all: &["x-small", "small", "medium", "large", "x-large", "xx-large"] };
const SHOE: Values = Values { name: "size", all: &["6", "6.5", "7", "7.5", "8", "8.5", "9", "10", "11", "12"] };
const FIT: Values = Values { name: "fit type", all: &["regular", "tall", "petite"] };
const SCENT: Values = Values {
    name: "scent",
    all: &["unscented", "vanilla", "cedar", "citrus", "jasmine", "sea breeze", "almond milk", "fresh linen"],
};
const VOLUME: Values = Values {
    name: "size",
    all: &["1 fl oz", "3.4 fl oz", "8 fl oz", "16 fl oz", "pack of 2", "pack of 3", "travel set"],
};
const FLAVOR: Values = Values {
    name: "flavor name",
    all: &[
        "original",
        "honey",
        "sea salt",
        "cinnamon",
        "ginger",
        "hazelnut",
        "smoked paprika",
        "wild berry",
        "mild curry",
    ],
};
const PACK: Values = Values {
    name: "size",
    all: &["6 ounce (pack of 1)", "6 ounce (pack of 4)", "12 ounce", "2 pound", "single tin", "box of 24"],
};
const LENGTH: Values = Values { name: "size", all: &["1.5 ft", "3 ft", "6 ft", "10 ft", "2-pack 6 ft"] };
const STYLE: Values = Values { name: "style", all: &["basic", "with carry bag", "with wall mount", "starter bundle"] };
const ROOM: Values =
    Values { name: "size", all: &["18 x 18 inch", "24 x 36 inch", "50 x 60 inch", "4 x 6 ft", "5 x 8 ft", "set of 2"] };

const fn kind(
    many: &'static str,
    one: &'static str,
    shelf: &'static str,
    choices: &'static [Values],
    price: (u32, u32),
) -> Kind {
    Kind { many, one, shelf, choices, price }
}

/// All departments.
pub(super) const DEPARTMENTS: [Department; 5] = [
    Department {
        category: "fashion",
        shelf: "Clothing & Shoes",
        kinds: &[
            kind("men's shirts", "Shirt for Men", "Men › Shirts", &[COLOR, SIZE, FIT], (14, 60)),
            kind("women's dresses", "Dress for Women", "Women › Dresses", &[COLOR, SIZE], (20, 110)),
            kind("running shoes", "Running Shoe", "Shoes › Sport", &[COLOR, SHOE], (35, 160)),
            kind("winter coats", "Winter Coat", "Outerwear › Coats", &[COLOR, SIZE], (60, 320)),
            kind("leather belts", "Leather Belt", "Accessories › Belts", &[COLOR, SIZE], (12, 55)),
            kind("wool socks", "Wool Socks", "Accessories › Socks", &[COLOR, SIZE], (6, 25)),
            kind("sun hats", "Sun Hat", "Accessories › Hats", &[COLOR], (9, 40)),
            kind("jeans", "Denim Jeans", "Men › Trousers", &[COLOR, SIZE, FIT], (25, 120)),
            kind("scarves", "Knit Scarf", "Accessories › Scarves", &[COLOR], (10, 45)),
            kind("house slippers", "House Slipper", "Shoes › Slippers", &[COLOR, SHOE], (12, 50)),
        ],
        attributes: &[
            "machine washable",
            "hand wash",
            "moisture wicking",
            "long sleeve",
            "rubber sole",
            "memory foam",
            "elastic waist",
            "quick drying",
            "wrinkle resistant",
            "organic cotton",
            "water resistant",
            "arch support",
            "fleece lining",
            "button closure",
        ],
        uses: &["daily wear", "long walks", "the office", "cold mornings", "travel"],
    },
    Department {
        category: "beauty",
        shelf: "Beauty & Care",
        kinds: &[
            kind("face creams", "Face Cream", "Skin › Face", &[SCENT, VOLUME], (8, 70)),
            kind("shampoos", "Shampoo", "Hair › Washing", &[SCENT, VOLUME], (6, 35)),
            kind("lip balms", "Lip Balm", "Skin › Lips", &[SCENT], (3, 18)),
            kind("nail polish sets", "Nail Polish Set", "Hands › Nails", &[COLOR], (7, 30)),
            kind("hair brushes", "Hair Brush", "Hair › Tools", &[COLOR], (6, 40)),
            kind("perfumes", "Eau de Parfum", "Fragrance › Sprays", &[SCENT, VOLUME], (18, 140)),
            kind("body lotions", "Body Lotion", "Skin › Body", &[SCENT, VOLUME], (7, 32)),
            kind("make-up mirrors", "Make-up Mirror", "Tools › Mirrors", &[COLOR, STYLE], (15, 80)),
            kind("bath salts", "Bath Salt", "Bath › Salts", &[SCENT, VOLUME], (6, 28)),
            kind("electric toothbrushes", "Electric Toothbrush", "Mouth › Brushes", &[COLOR, STYLE], (20, 130)),
        ],
        attributes: &[
            "cruelty free",
            "paraben free",
            "fragrance free",
            "tea tree",
            "coconut oil",
            "sensitive skin",
            "dry skin",
            "long lasting",
            "easy to use",
            "travel size",
            "sulfate free",
            "shea butter",
            "vitamin c",
            "gift ready",
        ],
        uses: &["sensitive days", "the morning routine", "dry air", "a small bathroom", "weekend trips"],
    },
    Department {
        category: "electronics",
        shelf: "Electronics",
        kinds: &[
            kind("headphones", "Headphones", "Audio › Headphones", &[COLOR, STYLE], (20, 260)),
            kind("phone cases", "Phone Case", "Phones › Cases", &[COLOR], (8, 35)),
            kind("usb cables", "USB Cable", "Cables › USB", &[COLOR, LENGTH], (5, 25)),
            kind("bluetooth speakers", "Bluetooth Speaker", "Audio › Speakers", &[COLOR, STYLE], (18, 190)),
            kind("keyboards", "Keyboard", "Computers › Input", &[COLOR, STYLE], (20, 150)),
            kind("wall chargers", "Wall Charger", "Power › Chargers", &[COLOR, LENGTH], (9, 45)),
            kind("webcams", "Webcam", "Computers › Cameras", &[STYLE], (22, 120)),
            kind("power banks", "Power Bank", "Power › Batteries", &[COLOR, STYLE], (15, 80)),
            kind("camera bags", "Camera Bag", "Photo › Bags", &[COLOR, STYLE], (18, 95)),
            kind("hdmi cables", "HDMI Cable", "Cables › Video", &[LENGTH], (6, 30)),
        ],
        attributes: &[
            "fast charging",
            "noise cancelling",
            "high resolution",
            "gold plated",
            "plug play",
            "hands free",
            "heavy duty",
            "easy install",
            "water proof",
            "high speed",
            "carrying case",
            "usb port",
            "batteries included",
            "ultra light",
        ],
        uses: &["video calls", "the train", "a shared desk", "gaming nights", "studio work"],
    },
    Department {
        category: "garden",
        shelf: "Home & Garden",
        kinds: &[
            kind("office chairs", "Office Chair", "Office › Chairs", &[COLOR, STYLE], (70, 420)),
            kind("throw blankets", "Throw Blanket", "Bedding › Throws", &[COLOR, ROOM], (15, 70)),
            kind("curtains", "Curtain Panel", "Windows › Curtains", &[COLOR, ROOM], (16, 90)),
            kind("side tables", "Side Table", "Living Room › Tables", &[COLOR], (40, 220)),
            kind("bookshelves", "Bookshelf", "Living Room › Shelves", &[COLOR, STYLE], (50, 300)),
            kind("cushion covers", "Cushion Cover", "Bedding › Cushions", &[COLOR, ROOM], (8, 35)),
            kind("area rugs", "Area Rug", "Floors › Rugs", &[COLOR, ROOM], (30, 260)),
            kind("floor lamps", "Floor Lamp", "Lighting › Lamps", &[COLOR, STYLE], (35, 190)),
            kind("plant pots", "Plant Pot", "Garden › Pots", &[COLOR, ROOM], (9, 60)),
            kind("wall clocks", "Wall Clock", "Decoration › Clocks", &[COLOR], (14, 75)),
        ],
        attributes: &[
            "easy assemble",
            "solid wood",
            "non slip",
            "easy clean",
            "space saving",
            "machine washable",
            "eco friendly",
            "height adjustable",
            "super soft",
            "living room",
            "steel frame",
            "stain resistant",
            "hand made",
            "fade resistant",
        ],
        uses: &["small flats", "the reading corner", "guest rooms", "the balcony", "long evenings"],
    },
    Department {
        category: "grocery",
        shelf: "Food & Drink",
        kinds: &[
            kind("green teas", "Green Tea", "Drinks › Tea", &[FLAVOR, PACK], (5, 28)),
            kind("coffee beans", "Coffee Beans", "Drinks › Coffee", &[FLAVOR, PACK], (9, 45)),
            kind("granolas", "Granola", "Breakfast › Cereal", &[FLAVOR, PACK], (5, 24)),
            kind("dark chocolates", "Dark Chocolate", "Sweets › Chocolate", &[FLAVOR, PACK], (4, 40)),
            kind("olive oils", "Olive Oil", "Pantry › Oils", &[PACK], (8, 48)),
            kind("dried fruits", "Dried Fruit", "Snacks › Fruit", &[FLAVOR, PACK], (5, 30)),
            kind("pastas", "Pasta", "Pantry › Pasta", &[FLAVOR, PACK], (4, 26)),
            kind("spice mixes", "Spice Mix", "Pantry › Spices", &[FLAVOR, PACK], (3, 22)),
            kind("nut butters", "Nut Butter", "Breakfast › Spreads", &[FLAVOR, PACK], (6, 32)),
            kind("crackers", "Crackers", "Snacks › Crackers", &[FLAVOR, PACK], (4, 21)),
        ],
        attributes: &[
            "gluten free",
            "non gmo",
            "low sugar",
            "certified organic",
            "dairy free",
            "fat free",
            "plant based",
            "kosher certified",
            "high protein",
            "artificial flavors free",
            "source of fiber",
            "resealable bag",
            "nut free",
            "low sodium",
        ],
        uses: &["a quick breakfast", "the lunch box", "guests", "slow Sundays", "hikes"],
    },
];

/// Made-up makers.
pub(super) const MAKERS: [&str; 24] = [
    "Alderbrook",
    "Birchline",
    "Corvana",
    "Dunmore",
    "Elmstead",
    "Fernhill",
    "Galdira",
    "Harrowby",
    "Ivenfield",
    "Jorvane",
    "Kestrelway",
    "Lindqvar",
    "Marlowen",
    "Norrick",
    "Oakhaven",
    "Pellworth",
    "Quillon",
    "Ravenby",
    "Selwick",
    "Tarnway",
    "Ulverton",
    "Vintrell",
    "Westmarch",
    "Yarrowdale",
];

/// What titles begin with after the maker.
pub(super) const SERIES: [&str; 16] = [
    "Harbor", "Meadow", "Summit", "Lantern", "Willow", "Granite", "Aurora", "Cobble", "Drift", "Ember", "Fable",
    "Grove", "Haven", "Isle", "Juniper", "Prairie",
];
