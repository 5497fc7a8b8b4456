"""What a job printed -> which network it used, what ended it, and why: NCCL, RCCL, OFI plugins, libfabric, launchers.

report = read_log(["slurm-123.out"], warn=print)
print(report.verdict, report.confidence, *report.causes)
"""

from lumiimg.joblog.ending import Ending, How
from lumiimg.joblog.files import follow, log_files, read_files, read_log
from lumiimg.joblog.jobs import Job, jobs_of, names_differ
from lumiimg.joblog.lines import probe_event
from lumiimg.joblog.reader import LogReader, read_lines
from lumiimg.joblog.report import Cause, LogReport, Measurement, VerdictGroup
from lumiimg.joblog.verdict import FAST, TRANSPORTS, Confidence, Verdict
from lumiimg.joblog.vocabulary import Effect, ExitRole, Vocabulary, vocabulary

__all__ = [
    "FAST",
    "TRANSPORTS",
    "Cause",
    "Confidence",
    "Effect",
    "Ending",
    "ExitRole",
    "How",
    "Job",
    "LogReader",
    "LogReport",
    "Measurement",
    "Verdict",
    "VerdictGroup",
    "Vocabulary",
    "follow",
    "jobs_of",
    "log_files",
    "names_differ",
    "probe_event",
    "read_files",
    "read_lines",
    "read_log",
    "vocabulary",
]
