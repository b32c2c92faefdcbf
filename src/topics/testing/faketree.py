"""The inodes of a FakeDisk and the names that lead to them, before and after a crash.

Promises that a crash image is legal: a name operation survives only when every earlier pending
one on its names in that directory did, and a rename between directories never loses both names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NoReturn, TypeVar

from topics.testing.crashplan import CrashPlan, Judge, NameOperation
from topics.testing.fakenodes import DirectoryNode, FileNode, apply_name, touched

ROOT_INO = 1

Node = FileNode | DirectoryNode
AnyNode = TypeVar("AnyNode", FileNode, DirectoryNode)


def fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)


def path_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


class FakeTree:
    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {ROOT_INO: DirectoryNode(ROOT_INO)}
        self._next_ino = ROOT_INO + 1
        self._next_order = 0

    def take_order(self) -> int:
        """The next place in the order of everything that happens to this tree."""
        self._next_order += 1
        return self._next_order

    def root(self) -> DirectoryNode:
        root = self._nodes[ROOT_INO]
        assert isinstance(root, DirectoryNode)
        return root

    def lookup(self, path: str) -> Node | None:
        node: Node | None = self.root()
        for part in path_parts(path):
            if not isinstance(node, DirectoryNode):
                return None
            node = self.child(node, part)
        return node

    def directory(self, path: str) -> DirectoryNode:
        node = self.lookup(path)
        if node is None:
            fail(errno.ENOENT, path)
        if isinstance(node, FileNode):
            fail(errno.ENOTDIR, path)
        return node

    def parent(self, path: str) -> tuple[DirectoryNode, str]:
        parts = path_parts(path)
        if not parts:
            fail(errno.EISDIR, path)
        return self.directory("/".join(parts[:-1])), parts[-1]

    def child(self, directory: DirectoryNode, name: str) -> Node | None:
        ino = directory.names.get(name)
        return None if ino is None else self._nodes[ino]

    def add_file(self, directory: DirectoryNode, name: str, order: int) -> FileNode:
        node = self._place(FileNode(self._next_ino))
        directory.apply(NameOperation(order, "create", name, node.ino))
        return node

    def add_directory(self, directory: DirectoryNode, name: str, order: int) -> DirectoryNode:
        node = self._place(DirectoryNode(self._next_ino))
        directory.apply(NameOperation(order, "mkdir", name, node.ino))
        return node

    def _place(self, node: AnyNode) -> AnyNode:
        self._next_ino += 1
        self._nodes[node.ino] = node
        return node

    def commit_names(self, directory: DirectoryNode) -> None:
        """Makes every name of `directory` durable, and what a rename out of it relies on."""
        self._commit_upto(directory, self._next_order)
        self._prune()

    def _commit_upto(self, directory: DirectoryNode, order: int) -> None:
        done = 0
        for operation in directory.pending:
            if operation.order > order:
                break
            if operation.needs is not None:
                # Ends: what an operation needs always came before it.
                target = self._nodes.get(operation.needs[0])
                if isinstance(target, DirectoryNode):
                    self._commit_upto(target, operation.needs[1])
            apply_name(directory.durable, operation)
            done += 1
        del directory.pending[:done]

    def _prune(self) -> None:
        """Drops inodes that no crash can reach; a handle keeps its own."""
        waiting, reached = [ROOT_INO], set[int]()
        while waiting:
            ino = waiting.pop()
            if ino in reached:
                continue
            reached.add(ino)
            node = self._nodes[ino]
            if isinstance(node, DirectoryNode):
                waiting.extend(node.inos())
        if len(reached) < len(self._nodes):
            self._nodes = {ino: node for ino, node in self._nodes.items() if ino in reached}

    def clone(self) -> FakeTree:
        twin = self._empty_twin()
        twin._nodes = {ino: node.clone() for ino, node in self._nodes.items()}
        return twin

    def _empty_twin(self) -> FakeTree:
        twin = FakeTree()
        twin._next_ino = self._next_ino
        twin._next_order = self._next_order
        return twin

    def crashed(self, plan: CrashPlan, seed: int) -> FakeTree:
        """A new tree holding what `plan` lets survive of this one, all of it durable."""
        orders = [operation.order for node in self._nodes.values() for operation in node.pending]
        judge = Judge(plan, seed, orders)
        names = self._surviving_names(judge)
        after = self._empty_twin()
        after._nodes = {}
        waiting = [ROOT_INO]
        while waiting:
            ino = waiting.pop()
            if ino in after._nodes:
                continue
            node = self._nodes[ino]
            if isinstance(node, FileNode):
                after._nodes[ino] = node.crashed(judge)
                continue
            survivor = DirectoryNode(ino)
            survivor.names = names[ino]
            survivor.durable = names[ino].copy()
            after._nodes[ino] = survivor
            waiting.extend(survivor.names.values())
        return after

    def _surviving_names(self, judge: Judge) -> dict[int, dict[str, int]]:
        directories = [node for node in self._nodes.values() if isinstance(node, DirectoryNode)]
        names = {directory.ino: directory.durable.copy() for directory in directories}
        # In the order of the calls, because one lost operation takes its dependents along, also
        # those in another directory.
        pending = sorted(
            (
                (operation.order, directory.ino, operation)
                for directory in directories
                for operation in directory.pending
            ),
            key=lambda entry: entry[0],
        )
        lost_orders: set[int] = set()
        lost_names: set[tuple[int, str]] = set()
        for order, ino, operation in pending:
            places = [(ino, name) for name in touched(operation)]
            is_stranded = operation.needs is not None and operation.needs[1] in lost_orders
            is_kept = judge.keeps_name(ino, operation)
            if is_kept and not is_stranded and lost_names.isdisjoint(places):
                apply_name(names[ino], operation)
            else:
                lost_orders.add(order)
                lost_names.update(places)
        return names

    def walk(self, *, durable: bool) -> Iterator[tuple[str, Node]]:
        """Every reachable path and node, parents first, names in order."""
        waiting: list[tuple[str, int]] = [("/", ROOT_INO)]
        while waiting:
            path, ino = waiting.pop()
            node = self._nodes[ino]
            yield path, node
            if isinstance(node, DirectoryNode):
                names = node.durable if durable else node.names
                prefix = path if path == "/" else path + "/"
                waiting.extend((prefix + name, names[name]) for name in sorted(names, reverse=True))
