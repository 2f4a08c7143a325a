"""Reports: plots, contact sheets and HTML pages."""

from sosn.report.page import write_report

__all__ = ["write_report"]
