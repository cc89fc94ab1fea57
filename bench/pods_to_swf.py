#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Days of Alibaba's recorded GPU cluster of 2023, for replay_queue.

    bench/pods_to_swf.py openb_pod_list_default.csv [--first DAY] [--days N] > trace.swf
    replay_queue --nodes GPUS --days N trace.swf

The file is cluster-trace-gpu-v2023/csv/openb_pod_list_default.csv of github.com/alibaba/clusterdata (Weng et al.,
"Beware of Fragmentation", USENIX ATC 2023). A pod with GPUs is a job of as many slots; it runs from when it was
scheduled to when it was deleted. The trace does not say how long its owner thought that it would: the time that
is asked for is one to ten times the time that it took, drawn with a fixed seed. Its user is drawn as well (the
trace has none). Prints the Standard Workload Format, and on stderr for how many GPUs it is a load of 0.85.
"""
import argparse
import csv
import random
import sys

DAY = 86400


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--first", type=int, default=148, help="the day, from 0")
    parser.add_argument("--days", type=int, default=1)
    args = parser.parse_args()
    drawn = random.Random(1)
    begin = args.first * DAY
    work, jobs = 0, []
    with open(args.file, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            created, gpus = int(float(row["creation_time"])), int(row["num_gpu"])
            if gpus == 0 or not begin <= created < begin + args.days * DAY:
                continue
            if not row["deletion_time"] or not row["scheduled_time"]:
                continue
            ran = max(1, int(float(row["deletion_time"])) - int(float(row["scheduled_time"])))
            user = min(49, int(drawn.paretovariate(0.5)))
            jobs.append((created - begin, ran, gpus, int(ran * drawn.uniform(1, 10)), user))
            work += ran * gpus
    for number, (created, ran, gpus, asked, user) in enumerate(sorted(jobs), 1):
        print(number, created, -1, ran, gpus, -1, -1, gpus, asked, -1, 1, user)
    least = max((job[2] for job in jobs), default=1)
    print(f"{len(jobs)} jobs; a load of 0.85 is {max(least, round(work / (0.85 * args.days * DAY)))} GPUs",
          file=sys.stderr)


if __name__ == "__main__":
    main()
