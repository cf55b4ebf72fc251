"""The economics of disputes: when cheating is irrational, who is paid, and what spam, delay and collusion cost."""

from tallystick.disputes.economics.conditions import Condition, conditions, unmet
from tallystick.disputes.economics.report import regions, report
from tallystick.disputes.economics.workload import DEFAULT_RULES, Economy, Workload

__all__ = ["DEFAULT_RULES", "Condition", "Economy", "Workload", "conditions", "regions", "report", "unmet"]
