"""From findings to a short list of what to do, by stated rules, and the same as plain text."""

from leakgauge.audit.advice.advise import Advice, advise
from leakgauge.audit.advice.rules import EXCLUSIVE, RULES, Rule, Severity
from leakgauge.audit.advice.text import as_text, to_do_as_text

__all__ = ["EXCLUSIVE", "RULES", "Advice", "Rule", "Severity", "advise", "as_text", "to_do_as_text"]
