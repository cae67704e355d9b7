//! Handles the keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::state::State;
use crate::ls::Order;

/// Keys that choose the order, with their names in the last line.
pub(crate) const ORDERS: [(char, Order, &str); 8] = [
    ('r', Order::Rate, "rate"),
    ('m', Order::Memory, "memory"),
    ('w', Order::Waste, "waste"),
    ('o', Order::RttOverBase, "RTT over base"),
    ('t', Order::Rtt, "RTT"),
    ('l', Order::Limit, "limit"),
    ('p', Order::Process, "process"),
    ('e', Order::Peer, "peer"),
];
/// Lines of a page.
const PAGE: isize = 10;

/// Whether to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Leave,
}

impl State {
    /// Does what a key stands for.
    pub(super) fn press(&mut self, key: KeyEvent) -> Then {
        if key.kind == KeyEventKind::Release {
            return Then::GoOn;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control {
            return if key.code == KeyCode::Char('c') { Then::Leave } else { Then::GoOn };
        }
        if self.typing.is_some() {
            self.type_filter(key.code);
            return Then::GoOn;
        }
        if self.opened().is_some() { self.press_in_detail(key.code) } else { self.press_in_list(key.code) }
    }

    fn press_in_detail(&mut self, key: KeyCode) -> Then {
        match key {
            KeyCode::Char('q') => return Then::Leave,
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => {
                self.close();
            }
            KeyCode::Up => self.scroll(-1),
            KeyCode::Down => self.scroll(1),
            _ => {}
        }
        Then::GoOn
    }

    fn press_in_list(&mut self, key: KeyCode) -> Then {
        match key {
            KeyCode::Char('q') => return Then::Leave,
            KeyCode::Esc => return if self.close() { Then::GoOn } else { Then::Leave },
            KeyCode::Up => self.go(-1),
            KeyCode::Down => self.go(1),
            KeyCode::PageUp => self.go(-PAGE),
            KeyCode::PageDown => self.go(PAGE),
            KeyCode::Home => self.choose(0),
            KeyCode::End => self.choose(usize::MAX),
            KeyCode::Enter => self.open(),
            KeyCode::Char('g') => self.group(),
            KeyCode::Char('/') => self.typing = Some(self.filter.clone()),
            KeyCode::Char('a') => {
                self.all = !self.all;
                self.arrange();
            }
            KeyCode::Char(letter) => {
                if let Some((_, order, _)) = ORDERS.iter().find(|(key, ..)| *key == letter) {
                    self.order = *order;
                    self.arrange();
                }
            }
            _ => {}
        }
        Then::GoOn
    }

    /// Edits the filter; Escape restores the former one.
    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = None,
            KeyCode::Esc => self.filter = self.typing.take().unwrap_or_default(),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.arrange();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::state::tests::{cookies, state};
    use super::*;

    pub(crate) fn press(state: &mut State, keys: &[KeyCode]) -> Then {
        keys.iter().map(|key| state.press(KeyEvent::from(*key))).last().unwrap_or(Then::GoOn)
    }

    pub(crate) fn type_in(state: &mut State, text: &str) -> Then {
        press(state, &text.chars().map(KeyCode::Char).collect::<Vec<_>>())
    }

    #[test]
    fn letters_sort() {
        let mut state = state();
        for (key, order) in [("p", [2, 3, 1]), ("e", [1, 2, 3]), ("r", [2, 3, 1])] {
            assert_eq!(type_in(&mut state, key), Then::GoOn);
            assert_eq!(cookies(&state), order, "{key}");
        }
        for (letter, order, name) in ORDERS {
            type_in(&mut state, &letter.to_string());
            assert_eq!(state.order, order, "{name}");
        }
    }

    #[test]
    fn a_filter_works_while_it_is_typed_and_escape_undoes_it() {
        let mut state = state();
        type_in(&mut state, "/ng");
        assert_eq!(cookies(&state), [3]);
        press(&mut state, &[KeyCode::Backspace, KeyCode::Backspace, KeyCode::Char('q'), KeyCode::Enter]);
        assert_eq!((cookies(&state), state.filter.as_str(), &state.typing), (vec![], "q", &None));
        assert_eq!(press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('x'), KeyCode::Esc]), Then::GoOn);
        assert_eq!(state.filter, "q");
    }

    #[test]
    fn three_keys_leave() {
        let mut state = state();
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(type_in(&mut state, "q"), Then::Leave);
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Then::Leave);
        assert_eq!(state.press(interrupt), Then::Leave);
        type_in(&mut state, "/");
        assert_eq!(state.press(interrupt), Then::Leave, "also while a filter is typed");
    }

    #[test]
    fn enter_opens_the_chosen_connection_and_escape_goes_back() {
        let mut state = state();
        assert_eq!(press(&mut state, &[KeyCode::Down, KeyCode::Enter]), Then::GoOn);
        assert_eq!(state.opened().map(|opened| opened.view.cookie), Some(3));
        state.explained(3, Some("one\ntwo\n".to_owned()));
        press(&mut state, &[KeyCode::Down, KeyCode::Down, KeyCode::Down]);
        assert_eq!(state.opened().map(|opened| opened.scroll), Some(1));
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Then::GoOn);
        assert!(state.opened().is_none());
        assert_eq!(press(&mut state, &[KeyCode::Enter, KeyCode::Char('q')]), Then::Leave);
    }

    #[test]
    fn escape_leaves_a_group_first() {
        let mut state = state();
        assert_eq!(press(&mut state, &[KeyCode::Char('g'), KeyCode::Enter]), Then::GoOn);
        assert_eq!((cookies(&state), state.grouping().1), (vec![2], Some("curl")));
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Then::GoOn);
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Then::Leave);
    }

    #[test]
    fn arrows_and_pages_move_within_the_list() {
        let mut state = state();
        for (key, line) in [
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 2),
            (KeyCode::Up, 1),
            (KeyCode::PageUp, 0),
            (KeyCode::End, 2),
            (KeyCode::Home, 0),
        ] {
            press(&mut state, &[key]);
            assert_eq!(state.cursor(), line, "{key:?}");
        }
    }
}
