//! Who has seen that the device refused content of a file (Linux: `errseq_t`, and the `f_wb_err` of
//! each opening).
//!
//! As Linux has it: each opening of the file that was there hears of it once, and one that came
//! later only if nobody had heard before it came. What is refused while nobody has heard of the last
//! time is the same news.
//!
//! Openings have ascending numbers (`WritebackErrors::opened`). Those that share the number 0 are not told
//! apart, and hear of it once together. So who is to hear follows from when the first one
//! heard; only those who have heard since are kept, who are no more than were there by then.

/// News of a file.
#[derive(Default)]
pub(crate) struct ErrorSeen {
    /// The last opening at the time when somebody heard of it first.
    first: Option<u64>,
    by: Vec<u64>,
}

impl ErrorSeen {
    /// There is news.
    pub(crate) fn refused(news: &mut Option<Box<ErrorSeen>>) {
        if news.as_ref().is_none_or(|known| known.first.is_some()) {
            *news = Some(Box::default());
        }
    }

    /// Whether an opening has to hear of it, which it does now; `last` is the last opening.
    pub(crate) fn by(news: &mut Option<Box<ErrorSeen>>, opened: u64, last: u64) -> bool {
        let Some(known) = news else { return false };
        let new = match known.first {
            None => true,
            Some(first) => opened != 0 && opened <= first && !known.by.contains(&opened),
        };
        if last == 0 {
            // Nobody else can be told apart from who hears it.
            *news = None;
            return new;
        }
        known.first.get_or_insert(last);
        if new && opened != 0 {
            known.by.push(opened);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hears_once_and_who_comes_later_only_before_anybody_heard() {
        let mut news = None;
        assert!(!ErrorSeen::by(&mut news, 1, 3));
        ErrorSeen::refused(&mut news);
        ErrorSeen::refused(&mut news);
        // 4 came after it, and nobody had heard.
        let told = [(4, 4), (4, 4), (2, 4), (5, 5), (1, 5), (2, 5), (0, 5), (3, 5), (3, 5)]
            .map(|(opened, last)| ErrorSeen::by(&mut news, opened, last));
        assert_eq!(told, [true, false, true, false, true, false, false, true, false]);
        ErrorSeen::refused(&mut news);
        let told = [5, 0, 5, 2].map(|opened| ErrorSeen::by(&mut news, opened, 5));
        assert_eq!(told, [true, false, false, true], "more news");
    }

    #[test]
    fn those_that_are_not_told_apart_hear_once_together() {
        let mut news = None;
        ErrorSeen::refused(&mut news);
        assert!(ErrorSeen::by(&mut news, 0, 0) && news.is_none(), "nothing is kept");
        ErrorSeen::refused(&mut news);
        assert_eq!(
            [2, 0, 0, 1].map(|opened| ErrorSeen::by(&mut news, opened, 2)),
            [true, false, false, true]
        );
    }
}
