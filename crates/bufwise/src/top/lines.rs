//! Writes lines of text and small pictures, cut to the available space.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{RenderDirection, Sparkline, Widget};

/// Width of a minute: one cell per sample.
pub(super) const MINUTE: u16 = 60;

/// A part of the screen that is filled from both ends.
pub(super) struct Lines<'a> {
    buffer: &'a mut Buffer,
    /// The free part; its top moves down.
    area: Rect,
    bottom: u16,
}

impl<'a> Lines<'a> {
    /// Starts with an empty part of the screen.
    pub(super) fn new(buffer: &'a mut Buffer, area: Rect) -> Self {
        Self { buffer, area, bottom: area.bottom() }
    }

    /// Returns the free part.
    pub(super) fn rest(&self) -> Rect {
        Rect { height: self.left(), ..self.area }
    }

    /// Returns the number of free lines.
    pub(super) fn left(&self) -> u16 {
        self.bottom.saturating_sub(self.area.y)
    }

    /// Returns the underlying buffer.
    pub(super) fn buffer(&mut self) -> &mut Buffer {
        self.buffer
    }

    /// Writes a line at the top of the free part; returns its place, or `None` if nothing is free.
    pub(super) fn first(&mut self, text: &str, style: Modifier) -> Option<Rect> {
        let place = (self.left() > 0).then_some(Rect { height: 1, ..self.area })?;
        write(self.buffer, place, text, style.into());
        self.area.y += 1;
        Some(place)
    }

    /// Writes a line at the bottom of the free part.
    pub(super) fn last(&mut self, text: &str, style: Modifier) {
        if self.left() > 0 {
            self.bottom -= 1;
            write(self.buffer, Rect { y: self.bottom, height: 1, ..self.area }, text, style.into());
        }
    }
}

/// Writes one line into a place of the screen, cut to its width.
pub(super) fn write(buffer: &mut Buffer, place: Rect, text: &str, style: Style) {
    let place = place.intersection(buffer.area);
    if !place.is_empty() {
        buffer.set_stringn(place.x, place.y, text, place.width.into(), style);
    }
}

/// Draws the last minute: the newest sample at the right, heights relative to the largest.
pub(super) fn spark(buffer: &mut Buffer, place: Rect, newest_first: &[Option<u64>], style: Style) {
    Sparkline::default()
        .direction(RenderDirection::RightToLeft)
        .data(newest_first.iter().copied())
        .absent_value_symbol(" ")
        .style(style)
        .render(place.intersection(buffer.area), buffer);
}
