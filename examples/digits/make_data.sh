#!/bin/sh
# Writes the data of the jobs: complete an arithmetic sequence. "3,5:9,2" means: the sequence begins
# with 3, 5; after 9 it continues at 0; give the next 2 terms. Answer: "7,9". All first terms, steps
# 1 to 3, and 1 to 3 asked terms: 90 prompts.
#   train.jsonl                   the prompts, for rewards
#   sft.jsonl, sft_val.jsonl      prompts and answers; 10 are held out
#   pairs.jsonl, pairs_val.jsonl  the right answer and one that counts down instead of up
set -eu
cd "$(dirname "$0")"
rm -f sft.jsonl sft_val.jsonl pairs.jsonl pairs_val.jsonl
awk 'BEGIN {
    index_ = 0
    for (first = 0; first < 10; first++)
        for (step = 1; step <= 3; step++)
            for (terms = 1; terms <= 3; terms++) {
                second = (first + step) % 10
                answer = down = ""
                for (i = 1; i <= terms; i++) {
                    answer = answer (i > 1 ? "," : "") (second + i * step) % 10
                    down = down (i > 1 ? "," : "") (second - i * step + 10) % 10
                }
                part = index_ % 9 == 4 ? "_val.jsonl" : ".jsonl"
                printf "{\"data_source\": \"digits\", \"prompt\": \"%d,%d:9,%d\", ", first, second, terms
                printf "\"reward_model\": {\"style\": \"rule\", \"ground_truth\": \"%s\"}, ", answer
                printf "\"extra_info\": {\"index\": %d}}\n", index_++
                prompt = sprintf("\"prompt\": \"%d,%d:9,%d\"", first, second, terms)
                printf "{%s, \"response\": \"%s\"}\n", prompt, answer > ("sft" part)
                printf "{%s, \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", prompt, answer, down > ("pairs" part)
            }
}' >train.jsonl
