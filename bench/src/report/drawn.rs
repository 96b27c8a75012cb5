//! What all pictures share: the colours of the sides, and text inside SVG.

pub const COLOURS: [&str; 6] = ["#2f6f9f", "#b8732e", "#5a8f3c", "#7a5aa6", "#a03a4a", "#4a9a9a"];

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
