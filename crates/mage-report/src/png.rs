//! How does a drawing get into a document that takes no SVG?
//!
//! Letters are drawn with a font that comes along (DejaVu Sans, whose licence allows it), so that they are there, and the
//! same, on a machine without fonts.

use mage_train::{Error, Result};
use resvg::{
    render,
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree, fontdb::Database},
};

/// Pixels for each unit of a drawing: sharp on paper and on dense screens.
const SCALE: f32 = 2.0;

/// Turns drawings into pictures.
pub struct Painter {
    options: Options<'static>,
}

impl Default for Painter {
    fn default() -> Self {
        let mut fonts = Database::new();
        fonts.load_font_data(dejavu::sans::regular().to_vec());
        fonts.load_font_data(dejavu::sans::bold().to_vec());
        fonts.set_sans_serif_family("DejaVu Sans");
        Painter { options: Options { fontdb: fonts.into(), ..Options::default() } }
    }
}

impl Painter {
    /// The picture of an SVG document, as a PNG file.
    pub fn png(&self, svg: &str) -> Result<Vec<u8>> {
        let wrong = |problem: String| Error::Stopped(format!("a drawing cannot be painted: {problem}"));
        let tree = Tree::from_str(svg, &self.options).map_err(|e| wrong(e.to_string()))?;
        let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| wrong("it has no size".to_owned()))?;
        let mut pixels = Pixmap::new(size.width(), size.height()).ok_or_else(|| wrong("it is too large".to_owned()))?;
        render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().map_err(|e| wrong(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn painted(inside: &str) -> Pixmap {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 120 40\" font-family=\"system-ui, sans-serif\">\
             <rect width=\"120\" height=\"40\" fill=\"#ffffff\"/>{inside}</svg>"
        );
        Pixmap::decode_png(&Painter::default().png(&svg).unwrap()).unwrap()
    }

    #[test]
    fn letters_are_drawn_without_any_font_on_the_machine() {
        let dark = |p: &Pixmap| p.pixels().iter().filter(|c| c.red() < 128).count();
        let (empty, text) = (painted(""), painted("<text x=\"10\" y=\"25\">Pass@k — 95 %</text>"));
        assert_eq!((text.width(), text.height()), (240, 80));
        assert_eq!(dark(&empty), 0);
        assert!(dark(&text) > 300, "{} dark pixels", dark(&text));
        let bold = painted("<text x=\"10\" y=\"25\" font-weight=\"600\">Pass@k — 95 %</text>");
        assert!(dark(&bold) > dark(&text), "and bold ones are bold");
    }

    #[test]
    fn what_is_no_drawing_is_refused() {
        assert!(Painter::default().png("<svg").unwrap_err().to_string().contains("cannot be painted"));
    }
}
