"""What notebooks show of queries, sessions and plans."""

from tensorquery.display.plan import plan_html
from tensorquery.display.query import query_html
from tensorquery.display.session import session_html

__all__ = ["plan_html", "query_html", "session_html"]
