//! The command line. Names and flags are a contract.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::check::CheckArgs;
use crate::daemon::DaemonArgs;
use crate::demo::DemoArgs;
use crate::exit::{Failure, Outcome};
use crate::explain::ExplainArgs;
use crate::generate::GenerateArgs;
use crate::get::GetArgs;
use crate::history::HistoryArgs;
use crate::lab::LabCommand;
use crate::ls::LsArgs;
use crate::metrics::MetricsArgs;
use crate::output;
use crate::probe::ProbeArgs;
use crate::put::PutArgs;
use crate::restore::RestoreArgs;
use crate::run::RunArgs;
use crate::serve::ServeArgs;
use crate::top::TopArgs;
use crate::web::WebArgs;

/// Automatic TCP buffer tuning for Linux: every connection gets the buffer it needs, and not a byte more.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

// The types of the arguments have the descriptions: the first paragraph for the list, all for `COMMAND --help`.
#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<RunArgs>),
    Daemon(Box<DaemonArgs>),
    Ls(LsArgs),
    Top(Box<TopArgs>),
    Web(WebArgs),
    Explain(ExplainArgs),
    History(HistoryArgs),
    Probe(Box<ProbeArgs>),
    Check(CheckArgs),
    Restore(RestoreArgs),
    Metrics(MetricsArgs),
    Get(Box<GetArgs>),
    Put(Box<PutArgs>),
    Serve(Box<ServeArgs>),
    Demo(DemoArgs),
    /// Emulate paths, and run programs and experiments over them with the real kernel
    ///
    /// It needs root, except for list, show and report. Everything happens in network namespaces that end with the process.
    #[command(subcommand)]
    Lab(LabCommand),
    #[command(hide = true)]
    Generate(GenerateArgs),
}

impl Cli {
    pub(crate) fn run(self) -> Outcome {
        match self.command {
            Command::Check(args) => args.run(),
            Command::Demo(args) => args.run(),
            Command::Explain(args) => args.run(),
            Command::Get(args) => args.run(),
            Command::History(args) => args.run(),
            Command::Lab(command) => command.run(),
            Command::Ls(args) => args.run(),
            Command::Metrics(args) => args.run(),
            Command::Probe(args) => args.run(),
            Command::Put(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Daemon(args) => args.run(),
            Command::Serve(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Web(args) => args.run(),
            Command::Restore(args) => args.run(),
            Command::Generate(args) => args.run(&Self::command()),
        }
    }
}

/// Parses the command line. Help and version are printed here; wrong usage becomes one line.
pub(crate) fn parse() -> Result<Cli, Failure> {
    Cli::try_parse().or_else(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::line(&error.render().to_string())?;
            std::process::exit(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::note(&error.render().to_string());
            std::process::exit(i32::from(crate::exit::USAGE))
        }
        _ => Err(Failure::usage(format!("{}; try --help", in_a_line(&error)))),
    })
}

/// Returns the error's first sentence, and clap's suggestion.
fn in_a_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let reason = text.split("\n\n").next().unwrap_or(&text).trim_start_matches("error: ").to_owned();
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let mut parts: Vec<String> = std::iter::once(reason).chain(tips.map(str::to_owned)).collect();
    if error.kind() == ErrorKind::ValueValidation
        && let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && let Some(meant) = policy_meant(&parts[0], value)
    {
        parts.push(format!("did you mean '{meant}'?"));
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let is_of = |command: &str| words.first().is_some_and(|word| word == command);
    if error.kind() == ErrorKind::MissingRequiredArgument
        && (is_of("explain") || is_of("probe"))
        && words.iter().any(|word| word == "--json")
    {
        parts.push("--json takes the word behind it as its file: write --json last".to_owned());
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && is_of("run")
        && !word.starts_with('-')
    {
        parts = vec![parts.swap_remove(0), format!("the command stands after --: bufwise run -- {word}")];
    }
    parts.join("; ")
}

/// Returns the value with its wrong policy name replaced by the most similar of the names that the reason lists.
fn policy_meant(reason: &str, value: &str) -> Option<String> {
    let (wrong, names) = reason.split_once("unknown policy `")?.1.split_once('`')?;
    let known = names.rsplit_once(" are ")?.1.split(", ").filter(|name| !name.contains(':'));
    let changes = |name: &&str| strsim::osa_distance(name, wrong);
    let meant = known.min_by_key(changes)?;
    // At most a third of the letters may differ, or one letter: a transposition counts as one change.
    (changes(&meant) <= 1.max(meant.len() / 3)).then(|| value.replacen(wrong, meant, 1))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A certificate's fingerprint, in the place of the word FINGERPRINT.
    const FINGERPRINT: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    /// Returns the words of a shell's line; what is in single quotes belongs to one word.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        for (number, part) in line.split('\'').enumerate() {
            let is_quoted = number % 2 == 1;
            for letter in part.chars() {
                match words.last_mut() {
                    Some(word) if is_quoted || letter != ' ' => word.push(letter),
                    _ => words.push(String::new()),
                }
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    /// Returns the calls of bufwise in a shell's line, without comments and redirections.
    fn calls(line: &str) -> Vec<Vec<String>> {
        let words = words(&line.replace("; ", " ; ").replace("FINGERPRINT", FINGERPRINT));
        let said = words.iter().take_while(|word| !word.starts_with('#')).cloned().collect::<Vec<_>>();
        let parts = said.split(|word| matches!(word.as_str(), "&&" | ";" | "|"));
        let is_word = |word: &&String| !word.starts_with('>');
        let calls = parts.map(|part| part.iter().take_while(is_word).cloned().collect::<Vec<String>>());
        calls.filter(|call| call.first().is_some_and(|first| first == "bufwise")).collect()
    }

    /// Returns the lines for a shell in a page: of a block with prompts only those behind one.
    fn lines_of(page: &str) -> Vec<String> {
        let page = page.replace("\\\n", " ");
        let mut found = Vec::new();
        for block in page.split("```").skip(1).step_by(2) {
            let has_prompts = block.lines().any(|line| line.starts_with("$ "));
            for line in block.lines().skip(1) {
                let line = if has_prompts { line.strip_prefix("$ ") } else { Some(line) };
                found.extend(line.filter(|line| line.starts_with("bufwise ")).map(str::to_owned));
            }
        }
        found
    }

    /// Returns the examples in the help of a command and of those below it.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().map(|line| {
            let line = line.trim_start_matches("Examples:").trim_start_matches("Example:").trim();
            line.trim_start_matches("sudo ").to_owned()
        });
        let own = lines.filter(|line| line.starts_with("bufwise ")).collect::<Vec<_>>();
        own.into_iter().chain(command.get_subcommands().flat_map(examples)).collect()
    }

    #[test]
    fn each_call_in_the_pages_and_in_the_help_is_one_that_this_program_takes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let pages = pages.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
        let pages = pages.chain([root.join("README.md")]);
        let mut lines: Vec<String> =
            pages.flat_map(|path| lines_of(&fs::read_to_string(path).unwrap())).collect();
        let in_pages = lines.len();
        lines.extend(examples(&Cli::command()));
        assert!(in_pages >= 30 && lines.len() >= in_pages + 15, "{in_pages} of {} lines", lines.len());
        for call in lines.iter().flat_map(|line| calls(line)) {
            if let Err(error) = Cli::try_parse_from(&call) {
                panic!("{}: {error}", call.join(" "));
            }
        }
    }

    #[test]
    fn the_readme_names_the_packages_and_the_image_of_this_version() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let readme = fs::read_to_string(root.join("README.md")).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        for name in [
            format!("./target/packages/bufwise_{version}-1_amd64.deb"),
            format!("./target/packages/bufwise-{version}-1.x86_64.rpm"),
            format!("localhost/bufwise:{version} daemon"),
        ] {
            assert!(readme.contains(&name), "README.md does not name {name}");
        }
    }

    #[test]
    fn a_line_is_parted_into_calls() {
        let parted = calls("bufwise lab run a --out b && bufwise web >c; bufwise ls | jq '.a | .b'  # d");
        let shown: Vec<String> = parted.iter().map(|call| call.join(" ")).collect();
        assert_eq!(shown, ["bufwise lab run a --out b", "bufwise web", "bufwise ls"]);
        assert_eq!(words("a 'b  c' --d='e f'"), ["a", "b  c", "--d=e f"]);
    }
}
