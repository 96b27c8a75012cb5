//! `spinney completions`: scripts for shells, and the answers that the scripts ask for.

use super::{Command, complete};
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::output::Out;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

pub const COMMAND: Command = Command {
    name: "completions",
    summary: "let a shell complete what you type",
    usage: "\
bash|zsh|fish
--words -- WORD...
--line LINE [--breaks CHARACTERS]",
    help: "\
Prints a script by which a shell completes verbs, options and their values, images, and paths
inside images. The script asks `spinney` itself while you type, so it need not be renewed.

Where it goes: for bash ~/.local/share/bash-completion/completions/spinney, for zsh a file
_spinney in a directory of $fpath, for fish ~/.config/fish/completions/spinney.fish.

Options, for the scripts
    --words                 what WORDs can end with, one a line, and what it means behind a
                            tabulator
    --line LINE             the same for a line that is not split into words yet
    --breaks CHARACTERS     of the answers leave off what is before the last of these

Examples
    eval \"$(spinney completions bash)\"
    spinney completions zsh > ~/.zfunc/_spinney
    spinney completions fish | source
",
    run,
};

const BASH: &str = r#"# Completions of spinney for bash: eval "$(spinney completions bash)"
_spinney() {
    local answer program=${COMP_WORDS[0]/#\~/$HOME}
    COMPREPLY=()
    while IFS= read -r answer; do
        answer=${answer%%$'\t'*}
        # An open quote keeps blanks together by itself.
        [[ ${COMP_WORDS[COMP_CWORD]} == [\"\']* ]] || printf -v answer %q "$answer"
        COMPREPLY+=("$answer")
    done < <("$program" completions --line "${COMP_LINE:0:COMP_POINT}" \
        --breaks "$COMP_WORDBREAKS" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]]; then
        compopt -o nospace
    fi
}
complete -F _spinney spinney
"#;

const ZSH: &str = r#"#compdef spinney
# Completions of spinney for zsh: a file _spinney in a directory of $fpath
_spinney() {
    local answer word about
    local -a ended ended_about open
    for answer in "${(@f)$("${(Q)words[1]/#\~/$HOME}" completions --words -- \
        "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
        word=${answer%%$'\t'*} about=${answer#*$'\t'}
        case $word in
            '') ;;
            *[/=]) open+=("$word") ;;
            *) ended+=("$word") ended_about+=("$word${${about:#$word}:+  -- $about}") ;;
        esac
    done
    (( $#ended )) && compadd -l -d ended_about -a ended
    (( $#open )) && compadd -S '' -a open
}
if [ "${funcstack[1]}" = _spinney ]; then _spinney "$@"; else compdef _spinney spinney; fi
"#;

const FISH: &str = r#"# Completions of spinney for fish: ~/.config/fish/completions/spinney.fish
function __spinney_answers
    set -l words (commandline -opc)
    set -l begun (commandline -ct)
    $words[1] completions --words -- $words[2..] "$begun" 2>/dev/null
end
complete -c spinney -f -a '(__spinney_answers)'
"#;

fn run(mut args: Args) -> Result<Exit> {
    let (mut words, mut line, mut breaks) = (None, None, OsString::new());
    let mut operands = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("words") => words = Some(()),
            Arg::Long("line") => line = Some(args.value()?),
            Arg::Long("breaks") => breaks = args.value()?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let mut out = Out::new();
    if let Some(line) = line {
        of_line(&mut out, &line, breaks.as_bytes())?;
    } else if words.is_some() {
        answer(&mut out, &operands, 0)?;
    } else {
        let shell = args::one(operands, "a shell: bash, zsh or fish")?;
        out.bytes(match shell.to_str() {
            Some("bash") => BASH.as_bytes(),
            Some("zsh") => ZSH.as_bytes(),
            Some("fish") => FISH.as_bytes(),
            _ => return Err(Error::usage("the shells are bash, zsh and fish")),
        })?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn of_line(out: &mut Out, line: &OsString, breaks: &[u8]) -> Result<()> {
    let (words, quoted) = complete::split(line.as_bytes());
    let begun = words.last().map_or(&b""[..], |word| word.as_bytes());
    // Inside quotes no character ends a word.
    let last = begun.iter().rposition(|b| !quoted && breaks.contains(b));
    answer(out, words.get(1..).unwrap_or_default(), last.map_or(0, |at| at + 1))
}

/// One candidate a line, without its first `skip` bytes.
fn answer(out: &mut Out, words: &[OsString], skip: usize) -> Result<()> {
    for candidate in complete::candidates(words) {
        out.bytes(&candidate.word[skip.min(candidate.word.len())..])?;
        if !candidate.about.is_empty() {
            out.bytes(format!("\t{}", candidate.about).as_bytes())?;
        }
        out.line("")?;
    }
    Ok(())
}
