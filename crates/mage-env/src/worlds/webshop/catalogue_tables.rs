//! Tables of the catalogue generator: five departments, fifty product types, and their vocabulary.

/// A product type.
pub(super) struct ProductType {
    /// Plural, as in a search query.
    pub(super) plural: &'static str,
    /// Singular, as in titles.
    pub(super) singular: &'static str,
    /// Category path within the department.
    pub(super) category_path: &'static str,
    /// Options.
    pub(super) options: &'static [OptionTemplate],
    /// Price range.
    pub(super) price: (u32, u32),
}

/// A department.
pub(super) struct Department {
    pub(super) category: &'static str,
    pub(super) category_path: &'static str,
    pub(super) product_types: &'static [ProductType],
    /// Possible attributes of its products.
    pub(super) attributes: &'static [&'static str],
    /// Purposes named in titles and texts.
    pub(super) purposes: &'static [&'static str],
}

/// An option and its possible values.
#[derive(Clone, Copy)]
pub(super) struct OptionTemplate {
    pub(super) name: &'static str,
    pub(super) values: &'static [&'static str],
}

const COLOR: OptionTemplate = OptionTemplate {
    name: "color",
    values: &[
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
const SIZE: OptionTemplate =
    OptionTemplate { name: "size", values: &["x-small", "small", "medium", "large", "x-large", "xx-large"] };
const SHOE: OptionTemplate =
    OptionTemplate { name: "size", values: &["6", "6.5", "7", "7.5", "8", "8.5", "9", "10", "11", "12"] };
const FIT: OptionTemplate = OptionTemplate { name: "fit type", values: &["regular", "tall", "petite"] };
const SCENT: OptionTemplate = OptionTemplate {
    name: "scent",
    values: &["unscented", "vanilla", "cedar", "citrus", "jasmine", "sea breeze", "almond milk", "fresh linen"],
};
const VOLUME: OptionTemplate = OptionTemplate {
    name: "size",
    values: &["1 fl oz", "3.4 fl oz", "8 fl oz", "16 fl oz", "pack of 2", "pack of 3", "travel set"],
};
const FLAVOR: OptionTemplate = OptionTemplate {
    name: "flavor name",
    values: &[
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
const PACK: OptionTemplate = OptionTemplate {
    name: "size",
    values: &["6 ounce (pack of 1)", "6 ounce (pack of 4)", "12 ounce", "2 pound", "single tin", "box of 24"],
};
const LENGTH: OptionTemplate =
    OptionTemplate { name: "size", values: &["1.5 ft", "3 ft", "6 ft", "10 ft", "2-pack 6 ft"] };
const STYLE: OptionTemplate =
    OptionTemplate { name: "style", values: &["basic", "with carry bag", "with wall mount", "starter bundle"] };
const ROOM: OptionTemplate = OptionTemplate {
    name: "size",
    values: &["18 x 18 inch", "24 x 36 inch", "50 x 60 inch", "4 x 6 ft", "5 x 8 ft", "set of 2"],
};

const fn product_type(
    plural: &'static str,
    singular: &'static str,
    category_path: &'static str,
    options: &'static [OptionTemplate],
    price: (u32, u32),
) -> ProductType {
    ProductType { plural, singular, category_path, options, price }
}

/// All departments.
pub(super) const DEPARTMENTS: [Department; 5] = [
    Department {
        category: "fashion",
        category_path: "Clothing & Shoes",
        product_types: &[
            product_type("men's shirts", "Shirt for Men", "Men › Shirts", &[COLOR, SIZE, FIT], (14, 60)),
            product_type("women's dresses", "Dress for Women", "Women › Dresses", &[COLOR, SIZE], (20, 110)),
            product_type("running shoes", "Running Shoe", "Shoes › Sport", &[COLOR, SHOE], (35, 160)),
            product_type("winter coats", "Winter Coat", "Outerwear › Coats", &[COLOR, SIZE], (60, 320)),
            product_type("leather belts", "Leather Belt", "Accessories › Belts", &[COLOR, SIZE], (12, 55)),
            product_type("wool socks", "Wool Socks", "Accessories › Socks", &[COLOR, SIZE], (6, 25)),
            product_type("sun hats", "Sun Hat", "Accessories › Hats", &[COLOR], (9, 40)),
            product_type("jeans", "Denim Jeans", "Men › Trousers", &[COLOR, SIZE, FIT], (25, 120)),
            product_type("scarves", "Knit Scarf", "Accessories › Scarves", &[COLOR], (10, 45)),
            product_type("house slippers", "House Slipper", "Shoes › Slippers", &[COLOR, SHOE], (12, 50)),
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
        purposes: &["daily wear", "long walks", "the office", "cold mornings", "travel"],
    },
    Department {
        category: "beauty",
        category_path: "Beauty & Care",
        product_types: &[
            product_type("face creams", "Face Cream", "Skin › Face", &[SCENT, VOLUME], (8, 70)),
            product_type("shampoos", "Shampoo", "Hair › Washing", &[SCENT, VOLUME], (6, 35)),
            product_type("lip balms", "Lip Balm", "Skin › Lips", &[SCENT], (3, 18)),
            product_type("nail polish sets", "Nail Polish Set", "Hands › Nails", &[COLOR], (7, 30)),
            product_type("hair brushes", "Hair Brush", "Hair › Tools", &[COLOR], (6, 40)),
            product_type("perfumes", "Eau de Parfum", "Fragrance › Sprays", &[SCENT, VOLUME], (18, 140)),
            product_type("body lotions", "Body Lotion", "Skin › Body", &[SCENT, VOLUME], (7, 32)),
            product_type("make-up mirrors", "Make-up Mirror", "Tools › Mirrors", &[COLOR, STYLE], (15, 80)),
            product_type("bath salts", "Bath Salt", "Bath › Salts", &[SCENT, VOLUME], (6, 28)),
            product_type("electric toothbrushes", "Electric Toothbrush", "Mouth › Brushes", &[COLOR, STYLE], (20, 130)),
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
        purposes: &["sensitive days", "the morning routine", "dry air", "a small bathroom", "weekend trips"],
    },
    Department {
        category: "electronics",
        category_path: "Electronics",
        product_types: &[
            product_type("headphones", "Headphones", "Audio › Headphones", &[COLOR, STYLE], (20, 260)),
            product_type("phone cases", "Phone Case", "Phones › Cases", &[COLOR], (8, 35)),
            product_type("usb cables", "USB Cable", "Cables › USB", &[COLOR, LENGTH], (5, 25)),
            product_type("bluetooth speakers", "Bluetooth Speaker", "Audio › Speakers", &[COLOR, STYLE], (18, 190)),
            product_type("keyboards", "Keyboard", "Computers › Input", &[COLOR, STYLE], (20, 150)),
            product_type("wall chargers", "Wall Charger", "Power › Chargers", &[COLOR, LENGTH], (9, 45)),
            product_type("webcams", "Webcam", "Computers › Cameras", &[STYLE], (22, 120)),
            product_type("power banks", "Power Bank", "Power › Batteries", &[COLOR, STYLE], (15, 80)),
            product_type("camera bags", "Camera Bag", "Photo › Bags", &[COLOR, STYLE], (18, 95)),
            product_type("hdmi cables", "HDMI Cable", "Cables › Video", &[LENGTH], (6, 30)),
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
        purposes: &["video calls", "the train", "a shared desk", "gaming nights", "studio work"],
    },
    Department {
        category: "garden",
        category_path: "Home & Garden",
        product_types: &[
            product_type("office chairs", "Office Chair", "Office › Chairs", &[COLOR, STYLE], (70, 420)),
            product_type("throw blankets", "Throw Blanket", "Bedding › Throws", &[COLOR, ROOM], (15, 70)),
            product_type("curtains", "Curtain Panel", "Windows › Curtains", &[COLOR, ROOM], (16, 90)),
            product_type("side tables", "Side Table", "Living Room › Tables", &[COLOR], (40, 220)),
            product_type("bookshelves", "Bookshelf", "Living Room › Shelves", &[COLOR, STYLE], (50, 300)),
            product_type("cushion covers", "Cushion Cover", "Bedding › Cushions", &[COLOR, ROOM], (8, 35)),
            product_type("area rugs", "Area Rug", "Floors › Rugs", &[COLOR, ROOM], (30, 260)),
            product_type("floor lamps", "Floor Lamp", "Lighting › Lamps", &[COLOR, STYLE], (35, 190)),
            product_type("plant pots", "Plant Pot", "Garden › Pots", &[COLOR, ROOM], (9, 60)),
            product_type("wall clocks", "Wall Clock", "Decoration › Clocks", &[COLOR], (14, 75)),
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
        purposes: &["small flats", "the reading corner", "guest rooms", "the balcony", "long evenings"],
    },
    Department {
        category: "grocery",
        category_path: "Food & Drink",
        product_types: &[
            product_type("green teas", "Green Tea", "Drinks › Tea", &[FLAVOR, PACK], (5, 28)),
            product_type("coffee beans", "Coffee Beans", "Drinks › Coffee", &[FLAVOR, PACK], (9, 45)),
            product_type("granolas", "Granola", "Breakfast › Cereal", &[FLAVOR, PACK], (5, 24)),
            product_type("dark chocolates", "Dark Chocolate", "Sweets › Chocolate", &[FLAVOR, PACK], (4, 40)),
            product_type("olive oils", "Olive Oil", "Pantry › Oils", &[PACK], (8, 48)),
            product_type("dried fruits", "Dried Fruit", "Snacks › Fruit", &[FLAVOR, PACK], (5, 30)),
            product_type("pastas", "Pasta", "Pantry › Pasta", &[FLAVOR, PACK], (4, 26)),
            product_type("spice mixes", "Spice Mix", "Pantry › Spices", &[FLAVOR, PACK], (3, 22)),
            product_type("nut butters", "Nut Butter", "Breakfast › Spreads", &[FLAVOR, PACK], (6, 32)),
            product_type("crackers", "Crackers", "Snacks › Crackers", &[FLAVOR, PACK], (4, 21)),
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
        purposes: &["a quick breakfast", "the lunch box", "guests", "slow Sundays", "hikes"],
    },
];

/// Fictitious brands.
pub(super) const BRANDS: [&str; 24] = [
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

/// Series names, which follow the brand in titles.
pub(super) const SERIES: [&str; 16] = [
    "Harbor", "Meadow", "Summit", "Lantern", "Willow", "Granite", "Aurora", "Cobble", "Drift", "Ember", "Fable",
    "Grove", "Haven", "Isle", "Juniper", "Prairie",
];
