//! The examples below every command's `--help` and in its manual page.

use std::borrow::Cow;

use clap::Command;
use clap_mangen::roff::{Roff, bold, roman};

/// One example: its purpose, and the command line.
type Example = (&'static str, &'static str);

/// Each command by its words, and its examples. A test reads them all as the command line is read.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "demo",
        &[
            ("Three regions hold 100 requests a second together:", "tidegate demo"),
            (
                "The same for a minute, by rights that are never exceeded:",
                "tidegate demo --mode escrow --seconds 60",
            ),
        ],
    ),
    (
        "serve",
        &[
            ("A daemon for a first look, without a configuration file:", "tidegate serve --rules rules.toml"),
            ("One with everything:", "tidegate serve --config /etc/tidegate/tidegate.toml"),
        ],
    ),
    (
        "ratelimit",
        &[(
            "Its rules in a folder, its counts in Redis:",
            "RUNTIME_ROOT=/data REDIS_URL=localhost:6379 tidegate ratelimit",
        )],
    ),
    (
        "config check",
        &[("Before a daemon is restarted:", "tidegate config check --config /etc/tidegate/tidegate.toml")],
    ),
    (
        "check",
        &[
            ("Asks as a gateway does, and charges one permit:", "tidegate check user=u_42 path=/search"),
            (
                "Charges in full what a response cost:",
                "tidegate check user=u_42 path=/search --cost 1200 --report",
            ),
        ],
    ),
    (
        "explain",
        &[("Which rules match, and which of them decides:", "tidegate explain user=u_42 path=/search")],
    ),
    ("why", &[("Why a customer is denied now:", "tidegate why user=u_42 path=/search")]),
    (
        "top",
        &[
            ("Live, until q is pressed:", "tidegate top"),
            (
                "Once, for a script: the ten that are denied most:",
                "tidegate top --once --by denied --limit 10",
            ),
        ],
    ),
    (
        "acquire",
        &[("Holds one place, and prints the lease:", "tidegate acquire user=u_42 path=/export --id job-7")],
    ),
    ("renew", &[("By the lease that acquire printed:", "tidegate renew LEASE")]),
    ("release", &[("By the lease that acquire printed:", "tidegate release LEASE")]),
    (
        "reserve",
        &[(
            "2,000 tokens, for at most two minutes:",
            "tidegate reserve user=u_42 --amount 2000 --ttl 2m --id call-7",
        )],
    ),
    ("commit", &[("The call has used 1,350 of them:", "tidegate commit RESERVATION --actual 1350")]),
    ("cancel", &[("The call has failed, and costs nothing:", "tidegate cancel RESERVATION")]),
    (
        "rules list",
        &[
            ("The rules in force, in the order in which they decide:", "tidegate rules list"),
            ("As a rules file:", "tidegate rules list --toml > rules.toml"),
        ],
    ),
    ("rules show", &[("One rule with all that it says:", "tidegate rules show search")]),
    (
        "rules validate",
        &[(
            "Before it is applied, against the regions that there are:",
            "tidegate rules validate rules.toml --regions eu,us,ap",
        )],
    ),
    (
        "rules diff",
        &[
            ("Before it is applied:", "tidegate rules diff rules.toml"),
            (
                "In a pipeline, which fails where the two differ:",
                "tidegate rules diff rules.toml --prune --exit-code",
            ),
        ],
    ),
    (
        "rules apply",
        &[
            ("Adds and changes:", "tidegate rules apply rules.toml --reason 'search doubled'"),
            ("Also removes what the file lacks:", "tidegate rules apply rules.toml --prune"),
        ],
    ),
    (
        "rules delete",
        &[("One rule, with the reason:", "tidegate rules delete search --reason 'no longer sold'")],
    ),
    (
        "rules history",
        &[("The last five revisions that changed one rule:", "tidegate rules history search --limit 5")],
    ),
    (
        "rules rollback",
        &[("Back to what revision 41 said:", "tidegate rules rollback 41 --reason 'search was too tight'")],
    ),
    (
        "rules import",
        &[
            (
                "Limits of nginx, as a rules file:",
                "tidegate rules import --from nginx nginx.conf > rules.toml",
            ),
            (
                "The Envoy rate limit service's:",
                "tidegate rules import --from envoy config/*.yaml > rules.toml",
            ),
        ],
    ),
    (
        "users list",
        &[
            ("Those that are blocked:", "tidegate users list --blocked"),
            ("Those of a tier:", "tidegate users list --tier pro"),
        ],
    ),
    ("users show", &[("A user's tier, limits and block:", "tidegate users show u_42")]),
    (
        "users set",
        &[
            ("A tier:", "tidegate users set u_42 --tier pro"),
            (
                "A limit of the user's own for one rule:",
                "tidegate users set u_42 --limit search=500 --reason 'contract 1187'",
            ),
        ],
    ),
    ("users block", &[("For a day:", "tidegate users block u_42 --until 24h --reason 'abuse, ticket 1187'")]),
    ("users unblock", &[("Before its end:", "tidegate users unblock u_42 --reason 'ticket 1187 is closed'")]),
    ("users remove", &[("With the keys that are this user's:", "tidegate users remove u_42")]),
    ("keys list", &[("A user's keys:", "tidegate keys list --user u_42")]),
    ("keys show", &[("By its public name:", "tidegate keys show tgk_abcdefghijkl")]),
    (
        "keys create",
        &[("For 90 days:", "tidegate keys create --user u_42 --expires 90d --note 'nightly import'")],
    ),
    ("keys set", &[("Switches a key off for a while:", "tidegate keys set tgk_abcdefghijkl --active false")]),
    ("keys revoke", &[("For ever:", "tidegate keys revoke tgk_abcdefghijkl --reason 'it was in a log'")]),
    ("tiers list", &[("All tiers:", "tidegate tiers list")]),
    ("tiers show", &[("One tier:", "tidegate tiers show pro")]),
    (
        "tiers set",
        &[(
            "Makes one, to be named in rules and users:",
            "tidegate tiers set pro --description 'paid by month'",
        )],
    ),
    ("tiers remove", &[("One that nobody has:", "tidegate tiers remove pro")]),
    ("quota show", &[("What each region may spend:", "tidegate quota show search")]),
    (
        "quota set",
        &[(
            "Half of the limit to Europe, and never less than a tenth to Asia:",
            "tidegate quota set search eu=50 us=40 ap=10 --min ap=10",
        )],
    ),
    ("regions", &[("Links, who is cut off, and how far limits may be off:", "tidegate regions")]),
    (
        "regions add",
        &[
            (
                "One that is to hold shares, signed for all daemons:",
                "tidegate regions add ap-south --operator operator",
            ),
            ("And waits until it does:", "tidegate regions add ap-south --operator operator --wait 5m"),
        ],
    ),
    (
        "regions drain",
        &[(
            "Before its daemons are stopped:",
            "tidegate regions drain ap-south --operator operator --wait 5m",
        )],
    ),
    (
        "regions remove",
        &[
            (
                "Once it is drained and its daemons are stopped:",
                "tidegate regions remove ap-south --operator operator",
            ),
            (
                "One that was lost with its shares:",
                "tidegate regions remove ap-south --gone --operator operator",
            ),
        ],
    ),
    (
        "usage",
        &[
            ("Use by a customer today, and what is left:", "tidegate usage --user u_42 --by day --from 0d"),
            (
                "The users that a rule denied most today:",
                "tidegate usage --rule search --group user --by day --from 0d",
            ),
            ("Use of each key this month:", "tidegate usage --group key --by month --from 0d"),
        ],
    ),
    (
        "audit",
        &[
            (
                "A customer's denials of the last two hours:",
                "tidegate audit --user u_42 --outcome denied,blocked --from 2h",
            ),
            ("As they are recorded:", "tidegate audit --follow"),
        ],
    ),
    (
        "audit archive",
        &[(
            "What would go, before a timer does it:",
            "tidegate audit archive --config /etc/tidegate/tidegate.toml --dry-run",
        )],
    ),
    ("changes", &[("Who blocked or changed a user:", "tidegate changes --target u_42")]),
    ("buckets show", &[("A customer's bucket of one rule:", "tidegate buckets show search user=u_42")]),
    ("buckets reset", &[("It counts from zero in this region:", "tidegate buckets reset search user=u_42")]),
    (
        "doctor",
        &[(
            "The configuration and the daemon that runs by it:",
            "tidegate doctor --config /etc/tidegate/tidegate.toml",
        )],
    ),
    (
        "capacity",
        &[(
            "100,000 requests a second and ten million keys, in three regions:",
            "tidegate capacity --rps 100000 --keys 1e7 --regions 3",
        )],
    ),
    (
        "migrate",
        &[(
            "Before daemons of a new version start:",
            "tidegate migrate --config /etc/tidegate/tidegate.toml",
        )],
    ),
    (
        "admin token",
        &[(
            "For a pipeline that changes rules:",
            "tidegate admin token ci --role operator --add-to /etc/tidegate/tokens.toml",
        )],
    ),
    ("cert ca", &[("Once, away from the daemons:", "tidegate cert ca --out ca")]),
    (
        "cert issue",
        &[("One for each daemon:", "tidegate cert issue --ca ca --region eu --node eu-1 --out eu-1")],
    ),
    (
        "cert operator",
        &[("One for each operator:", "tidegate cert operator --ca ca --name anna --out operator")],
    ),
    ("cert renew", &[("In its place, with the same names:", "tidegate cert renew --ca ca --from eu-1")]),
    ("cert revoke", &[("A daemon's, whose key was lost:", "tidegate cert revoke --ca ca eu-1/node.pem")]),
    ("cert show", &[("Whom they name, and when they end:", "tidegate cert show ca/ca.pem eu-1/node.pem")]),
    (
        "object put",
        &[("Never over another one:", "tidegate object put --new base.tar s3://backups/tidegate/base.tar")],
    ),
    (
        "object get",
        &[("As a whole, or not at all:", "tidegate object get s3://backups/tidegate/base.tar base.tar")],
    ),
    ("object list", &[("All below a prefix:", "tidegate object list s3://backups/tidegate")]),
    ("object remove", &[("One that is too old:", "tidegate object remove s3://backups/tidegate/base.tar")]),
    ("completions", &[("For this shell:", "source <(tidegate completions bash)")]),
    ("man", &[("To be read by man -M pages tidegate:", "tidegate man pages/man1")]),
];

/// Returns the words of a command below another one: `rules` and `list` are `rules list`.
pub(super) fn below<'n>(path: &str, name: &'n str) -> Cow<'n, str> {
    if path.is_empty() { Cow::Borrowed(name) } else { Cow::Owned(format!("{path} {name}")) }
}

/// Returns the examples of a command by its words; none for one that only groups others.
fn examples(path: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(of, _)| *of == path).map(|(_, examples)| *examples).unwrap_or_default()
}

/// Puts the examples of a command, and of all below it, behind their help.
pub(super) fn add(command: Command, path: &str) -> Command {
    let command = command.mut_subcommands(|sub| {
        let path = below(path, sub.get_name()).into_owned();
        add(sub, &path)
    });
    let lines = examples(path).iter().map(|(purpose, line)| format!("\n  {purpose}\n    {line}"));
    let lines: String = lines.collect();
    if lines.is_empty() { command } else { command.after_help(format!("Examples:{lines}")) }
}

/// Adds the section of examples to a manual page.
///
/// # Errors
/// The page cannot be written.
pub(super) fn add_to_page(page: &mut Vec<u8>, path: &str) -> std::io::Result<()> {
    let examples = examples(path);
    if examples.is_empty() {
        return Ok(());
    }
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES"]);
    for (purpose, line) in examples {
        section.control("TP", []).text([roman(*purpose)]).text([bold(*line)]);
    }
    section.to_writer(page)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::Arguments;

    /// The words of a line, as a shell reads them: quotes join, and a redirection ends the command.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for letter in line.chars() {
            match letter {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                letter => words.last_mut().unwrap().push(letter),
            }
        }
        let end = words.iter().position(|word| word == ">").unwrap_or(words.len());
        words.truncate(end);
        words
    }

    /// The words of all commands that do something.
    fn collect(command: &Command, path: &str, into: &mut BTreeSet<String>) {
        for sub in command.get_subcommands() {
            collect(sub, &below(path, sub.get_name()), into);
        }
        let acts = command.get_subcommands().next().is_none() || !command.is_subcommand_required_set();
        if acts && !path.is_empty() {
            into.insert(path.to_owned());
        }
    }

    #[test]
    fn every_command_has_examples_and_each_is_one_of_that_command() {
        let mut commands = BTreeSet::new();
        collect(&Arguments::command(), "", &mut commands);
        let known: BTreeSet<String> = EXAMPLES.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(known, commands);
        assert_eq!(known.len(), EXAMPLES.len(), "each command once");
        for (path, examples) in EXAMPLES {
            assert!(!examples.is_empty(), "{path}");
            for (purpose, line) in *examples {
                assert!(line.contains(&format!("tidegate {path}")), "{path}: {line}");
                assert!(purpose.ends_with(':') && purpose.len() <= 78, "{purpose}");
                assert!(line.len() <= 96, "longer than the widest help: {line}");
            }
        }
    }

    #[test]
    fn every_example_is_read_as_it_stands() {
        for (_, line) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let line =
                line.strip_prefix("source <(").and_then(|line| line.strip_suffix(')')).unwrap_or(*line);
            // Variables of the environment stand before the program.
            let words = words(line).into_iter().skip_while(|word| word.as_str() != "tidegate");
            if let Err(refused) = Arguments::try_parse_from(words) {
                panic!("{line}: {refused}");
            }
        }
    }

    #[test]
    fn help_and_manual_pages_show_them() {
        let mut command = add(Arguments::command(), "");
        let rules = command.find_subcommand_mut("rules").unwrap();
        let help = rules.find_subcommand_mut("rollback").unwrap().render_long_help().to_string();
        assert!(help.contains("Examples:\n") && help.contains("    tidegate rules rollback 41"), "{help}");
        let mut page = Vec::new();
        add_to_page(&mut page, "rules rollback").unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains(".SH EXAMPLES") && page.contains("tidegate rules rollback 41"), "{page}");
    }
}
