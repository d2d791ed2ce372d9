//! The syntax of nginx's files: directives with their words and blocks.

use std::iter::Peekable;
use std::str::Chars;

use crate::database::imported::Unread;

/// Deepest nesting, and most directives in one file.
const DEPTH_MAX: usize = 32;
const DIRECTIVES_MAX: usize = 100_000;

/// One directive: `words { block }` or `words;`.
#[derive(Debug)]
pub(super) struct Directive {
    /// `file:line`, for sentences.
    pub(super) place: String,
    pub(super) name: String,
    pub(super) words: Vec<String>,
    /// `None`: it ends with `;`.
    pub(super) block: Option<Vec<Directive>>,
}

/// Reads a file.
pub(super) fn read(file: &str, text: &str) -> Result<Vec<Directive>, Unread> {
    let mut reader = NginxReader { file, rest: text.chars().peekable(), line: 1, read: 0 };
    reader.block(0)
}

struct NginxReader<'a> {
    file: &'a str,
    rest: Peekable<Chars<'a>>,
    line: usize,
    read: usize,
}

enum Token {
    Word(String),
    Semicolon,
    Open,
    Close,
    End,
}

impl NginxReader<'_> {
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, Unread> {
        if depth > DEPTH_MAX {
            return Err(self.fault("blocks are nested deeper than 32 levels"));
        }
        let mut directives = Vec::new();
        loop {
            let name = match self.token()? {
                Token::Word(name) => name,
                Token::Semicolon => continue,
                Token::Close if depth > 0 => return Ok(directives),
                Token::End if depth == 0 => return Ok(directives),
                Token::Close => return Err(self.fault("a block ends that never began: one \"}\" too many")),
                Token::End => return Err(self.fault("the file ends within a block: a \"}\" is missing")),
                Token::Open => {
                    return Err(self.fault("a block has no name: expected a directive before \"{\""));
                }
            };
            self.read += 1;
            if self.read > DIRECTIVES_MAX {
                return Err(self.fault("more than 100000 directives: split the file"));
            }
            directives.push(self.directive(name, depth)?);
        }
    }

    /// Reads the rest of a directive.
    fn directive(&mut self, name: String, depth: usize) -> Result<Directive, Unread> {
        let place = format!("{}:{}", self.file, self.line);
        let mut words = Vec::new();
        let block = loop {
            match self.token()? {
                Token::Word(word) => words.push(word),
                Token::Semicolon => break None,
                // Lua has quotes and braces of its own.
                Token::Open if name.ends_with("_by_lua_block") => {
                    self.skip_lua()?;
                    break Some(Vec::new());
                }
                Token::Open => break Some(self.block(depth + 1)?),
                Token::Close | Token::End => {
                    return Err(self.fault("a directive does not end: expected \";\" before here"));
                }
            }
        };
        Ok(Directive { place, name, words, block })
    }

    fn token(&mut self) -> Result<Token, Unread> {
        loop {
            match self.next() {
                None => return Ok(Token::End),
                Some('#') => self.skip_line(),
                Some(space) if space.is_whitespace() => {}
                Some(';') => return Ok(Token::Semicolon),
                Some('{') => return Ok(Token::Open),
                Some('}') => return Ok(Token::Close),
                Some(quote @ ('"' | '\'')) => return self.quoted(quote).map(Token::Word),
                Some(first) => return Ok(Token::Word(self.word(first))),
            }
        }
    }

    fn word(&mut self, first: char) -> String {
        let mut word = String::new();
        let mut next = Some(first);
        while let Some(letter) = next {
            word.push(letter);
            match letter {
                '\\' => word.extend(self.next()),
                // A variable's braces: `${name}`.
                '$' if self.rest.peek() == Some(&'{') => {
                    while let Some(letter) = self.next() {
                        word.push(letter);
                        if letter == '}' {
                            break;
                        }
                    }
                }
                _ => {}
            }
            next = match self.rest.peek() {
                Some(end) if end.is_whitespace() || matches!(end, ';' | '{' | '}') => None,
                Some(_) => self.next(),
                None => None,
            };
        }
        word
    }

    fn quoted(&mut self, quote: char) -> Result<String, Unread> {
        let mut word = String::new();
        while let Some(letter) = self.next() {
            match letter {
                '\\' if self.rest.peek().is_some_and(|next| *next == quote || *next == '\\') => {
                    word.extend(self.next());
                }
                end if end == quote => return Ok(word),
                other => word.push(other),
            }
        }
        Err(self.fault("the file ends within quotes"))
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|letter| letter != '\n') {}
    }

    /// Passes over Lua, whose texts and comments may hold braces that open nothing.
    fn skip_lua(&mut self) -> Result<(), Unread> {
        let mut open = 1_usize;
        while open > 0 {
            match self.next() {
                Some('{') => open += 1,
                Some('}') => open -= 1,
                Some(quote @ ('"' | '\'')) => drop(self.quoted(quote)?),
                Some('-') if self.rest.peek() == Some(&'-') => self.skip_line(),
                Some(_) => {}
                None => return Err(self.fault("the file ends within a block of Lua")),
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn fault(&self, why: &str) -> Unread {
        Unread { place: format!("{}:{}", self.file, self.line), why: why.to_owned() }
    }
}
