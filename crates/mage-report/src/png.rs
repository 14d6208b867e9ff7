//! Rendering of SVG figures to PNG.
//!
//! Text is drawn with an embedded font (DejaVu Sans), so that the result does not depend on installed fonts.

use mage_train::{Error, Result};
use resvg::{
    render,
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree, fontdb::Database},
};

/// Pixels per SVG unit, for sharp text in print and on high-density screens.
const SCALE: f32 = 2.0;

/// Renders SVG documents to PNG.
pub struct PngRenderer {
    options: Options<'static>,
}

impl Default for PngRenderer {
    fn default() -> Self {
        let mut fonts = Database::new();
        fonts.load_font_data(dejavu::sans::regular().to_vec());
        fonts.load_font_data(dejavu::sans::bold().to_vec());
        fonts.set_sans_serif_family("DejaVu Sans");
        PngRenderer { options: Options { fontdb: fonts.into(), ..Options::default() } }
    }
}

impl PngRenderer {
    /// Renders an SVG document to a PNG file.
    pub fn png(&self, svg: &str) -> Result<Vec<u8>> {
        let error = |problem: String| Error::Stopped(format!("cannot render a figure: {problem}"));
        let tree = Tree::from_str(svg, &self.options).map_err(|e| error(e.to_string()))?;
        let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| error("it has no size".to_owned()))?;
        let mut pixels = Pixmap::new(size.width(), size.height()).ok_or_else(|| error("it is too large".to_owned()))?;
        render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().map_err(|e| error(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render_body(body: &str) -> Pixmap {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 120 40\" font-family=\"system-ui, sans-serif\">\
             <rect width=\"120\" height=\"40\" fill=\"#ffffff\"/>{body}</svg>"
        );
        Pixmap::decode_png(&PngRenderer::default().png(&svg).unwrap()).unwrap()
    }

    #[test]
    fn text_is_rendered_without_installed_fonts() {
        let dark = |p: &Pixmap| p.pixels().iter().filter(|c| c.red() < 128).count();
        let (empty, text) = (render_body(""), render_body("<text x=\"10\" y=\"25\">Pass@k — 95 %</text>"));
        assert_eq!((text.width(), text.height()), (240, 80));
        assert_eq!(dark(&empty), 0);
        assert!(dark(&text) > 300, "{} dark pixels", dark(&text));
        let bold = render_body("<text x=\"10\" y=\"25\" font-weight=\"600\">Pass@k — 95 %</text>");
        assert!(dark(&bold) > dark(&text), "bold text is heavier");
    }

    #[test]
    fn invalid_svg_is_rejected() {
        assert!(PngRenderer::default().png("<svg").unwrap_err().to_string().contains("cannot render"));
    }
}
