"""A study as one page to look at: `python -m mpitune report RESULTS`, and report.html at the end of every study.

    journal -> findings.py, timeline.py: what happened     experiment.report_sections() -> content.py: what it means
    parts.py: what any study says    panels.py, drawings.py: static drawings, by svg.py
    chart_data.py: what report.js draws
    page.py: all of it -> report.html

The page shows static drawings without JavaScript; with it, report.js draws by Apache ECharts, which is in the file.
"""
