//! `bufwise generate`: writes manual pages and shell completions from the command line's definition, for packages.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::exit::Outcome;

/// The shells whose completions are packaged.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Exit statuses, for every page; [`crate::exit`] defines them.
const EXIT_STATUS: &str = "0: done. 1: failed. 2: wrong usage. \
    bufwise run and bufwise lab path return the status of the command that they ran.";

/// The files that bufwise reads and writes on a host, for the main page.
const FILES: [(&str, &str); 4] = [
    (
        "/etc/bufwise/bufwise.toml",
        "Configuration of the daemon. The packaged file names every key and its default.",
    ),
    (
        "/run/bufwise/control",
        "Control socket of the daemon; bufwise ls, top, web, explain, history, metrics, check and restore ask there.",
    ),
    ("/run/bufwise/caps-*", "Journals of changed settings, from which they are put back after a crash."),
    ("~/.netrc", "Passwords for bufwise get and bufwise put."),
];

/// Write manual pages into DIR/man and completions for bash, zsh and fish into DIR/completions.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Where to write; made if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Date of the manual pages, as 2026-11-22
    #[arg(long, value_name = "DATE", default_value = "")]
    date: String,
}

impl GenerateArgs {
    /// Writes pages and completions for `line`, the whole command line.
    pub(crate) fn run(self, line: &Command) -> Outcome {
        let (pages, completions) = (self.directory.join("man"), self.directory.join("completions"));
        for directory in [&pages, &completions] {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let mut command = line.clone().disable_help_subcommand(true);
        command.build();
        write_pages(&command, &pages, &self.date)?;
        let mut visible = visible(line);
        for shell in SHELLS {
            clap_complete::generate_to(shell, &mut visible, "bufwise", &completions)
                .with_context(|| format!("cannot write completions for {shell}"))?;
        }
        Ok(0)
    }
}

/// Writes the page of a command and of each visible command below it.
fn write_pages(command: &Command, directory: &Path, date: &str) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, directory, date)?;
    }
    let version = concat!("bufwise ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).date(date).source(version).manual("User Commands");
    let path = directory.join(man.get_filename());
    let cannot_write = || format!("cannot write {}", path.display());
    let mut page = Vec::new();
    write_page(command, &man, &mut page).with_context(cannot_write)?;
    // mandoc rejects the line breaks that clap_mangen writes before and after an empty line.
    let page = String::from_utf8_lossy(&page).replace("\n.br\n\n.br\n", "\n.sp\n");
    fs::write(&path, page).with_context(cannot_write)
}

/// Writes the page in the order of man-pages(7). clap_mangen's own order ends with sections EXTRA and VERSION.
fn write_page(command: &Command, man: &Man, out: &mut dyn Write) -> std::io::Result<()> {
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    closing_sections(command).to_writer(out)
}

fn closing_sections(command: &Command) -> Roff {
    let mut page = Roff::default();
    let is_main = command.get_display_name().is_none_or(|name| name == "bufwise");
    page.control("SH", ["EXIT STATUS"]).text([roman(EXIT_STATUS)]);
    if is_main {
        page.control("SH", ["FILES"]);
        for (file, what) in FILES {
            page.control("TP", []).text([bold(file)]).text([roman(what)]);
        }
    }
    if let Some(help) = command.get_after_help() {
        write_after_help(&mut page, &help.to_string());
    }
    page.control("SH", ["SEE ALSO"]);
    let others = if is_main { ("tcp", "(7), ") } else { ("bufwise", "(1), ") };
    page.text([bold(others.0), roman(others.1), bold("ss"), roman("(8)")]);
    page
}

/// Writes the text after the options: paragraphs that begin with "Example" as a section of examples, the others as
/// notes.
fn write_after_help(page: &mut Roff, help: &str) {
    let (examples, notes): (Vec<&str>, Vec<&str>) =
        help.split("\n\n").partition(|paragraph| paragraph.starts_with("Example"));
    if !examples.is_empty() {
        page.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in examples.iter().flat_map(|paragraph| paragraph.lines()) {
            let line = line.trim_start_matches("Examples:").trim_start_matches("Example:").trim();
            if !line.is_empty() {
                page.text([roman(line)]);
            }
        }
        page.control("fi", []);
    }
    for (place, paragraph) in notes.iter().enumerate() {
        match place {
            0 => page.control("SH", ["NOTES"]),
            _ => page.control("PP", []),
        };
        for line in paragraph.lines() {
            page.text([roman(line)]);
        }
    }
}

/// Returns the command without what --help hides: clap_complete offers hidden commands too, and clap cannot remove one.
fn visible(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    Command::new(command.get_name().to_owned())
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()))
        .subcommands(shown.map(visible))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_lines_of_their_own_and_the_rest_is_notes() {
        let mut page = Roff::default();
        write_after_help(&mut page, "Examples:\n  bufwise a\n  bufwise b\n\nSome words.\n\n.NAME is hidden.");
        let text = page.render();
        let examples = text.find(".SH EXAMPLES").unwrap_or_else(|| panic!("{text}"));
        assert!(
            text[examples..].contains("\nbufwise a\nbufwise b\n.fi\n.SH NOTES\nSome words.\n.PP\n"),
            "{text}"
        );
        assert!(text.contains("\n\\&.NAME"), "a line that begins with a dot is no request: {text}");
    }

    #[test]
    fn hidden_commands_are_not_completed() {
        let line = Command::new("bufwise").subcommand(Command::new("generate").hide(true)).subcommand(
            Command::new("lab")
                .subcommand(Command::new("path"))
                .subcommand(Command::new("document").hide(true)),
        );
        let visible = visible(&line);
        assert!(visible.find_subcommand("generate").is_none());
        let lab = visible.find_subcommand("lab").unwrap_or_else(|| panic!("lab is visible"));
        assert!(lab.find_subcommand("path").is_some() && lab.find_subcommand("document").is_none());
    }
}
