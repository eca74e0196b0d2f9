package text

// Nearest gives the candidate that was probably meant by a mistyped word: the
// one at the smallest edit distance, if that is at most two and less than the
// length of the word; "" if there is none. Swapped neighbours count as one edit.
func Nearest(word string, candidates []string) string {
	best, bestDistance := "", 3
	for _, c := range candidates {
		if d := distance(word, c); d < bestDistance && d < len(word) {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the optimal string alignment distance in bytes: insertions,
// deletions, substitutions, and neighbours swapped. A word that is much longer
// than any candidate is not worth the work.
func distance(a, b string) int {
	if d := len(a) - len(b); d > 2 || d < -2 {
		return 3
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
