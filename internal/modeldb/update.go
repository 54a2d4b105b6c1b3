package modeldb

import (
	"math"
	"slices"
	"strings"
)

// writeError is the error of one item of a write, or of a whole command that is one item.
type writeError struct {
	code    int32
	message string
	// pattern is the key of the index that a duplicate is in.
	pattern document
}

func (e *writeError) Error() string { return e.message }

// Codes of the server, from src/mongo/base/error_codes.yml.
const (
	codeBadValue       = 2
	codePathNotViable  = 28
	codeImmutableField = 66
	codeTypeMismatch   = 14
	codeNotImplemented = 238
	codeDuplicateKey   = 11000
)

// apply is the document after an update: operators, or a pipeline. inserted is set for a document that an upsert makes.
func apply(d document, update any, inserted bool) (_ document, err *writeError) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *writeError: // of an expression
			err = r
		default:
			panic(r)
		}
	}()
	if stages, ok := update.(array); ok {
		return applyPipeline(d, stages)
	}
	operators, ok := update.(document)
	if !ok || len(operators) == 0 || !strings.HasPrefix(operators[0].key, "$") {
		refuse("updates that replace a document")
	}
	var paths []string
	for _, o := range operators {
		operator := operatorsOf[o.key]
		fields, ok := o.value.(document)
		if operator == nil || !ok {
			refuse("update operator %s of %T", o.key, o.value)
		}
		for _, f := range fields {
			if slices.ContainsFunc(paths, func(p string) bool { return overlap(p, f.key) }) {
				refuse("two changes of %s", f.key)
			}
			paths = append(paths, f.key)
			if f.key == "_id" {
				return nil, &writeError{code: codeImmutableField, message: "the field _id is immutable"}
			}
			if o.key == "$setOnInsert" && !inserted {
				continue
			}
			if o.key == "$unset" {
				d = d.without(f.key)
				continue
			}
			was := d.at(f.key)
			is, err := operator(was, f.value)
			if err != nil {
				return nil, err
			}
			if was != nil && identical(was, is) {
				continue
			}
			if d, ok = d.with(f.key, is); !ok {
				return nil, &writeError{code: codePathNotViable, message: "Cannot create field at '" + f.key + "'"}
			}
		}
	}
	return d, nil
}

// overlap tells whether one path is the other one, or leads into it.
func overlap(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+".") || strings.HasPrefix(b, a+".")
}

// operatorsOf give a field's value after an update; nil stands for a field that is not there.
var operatorsOf = map[string]func(was, operand any) (any, *writeError){
	"$set":         func(_, o any) (any, *writeError) { return o, nil },
	"$setOnInsert": func(_, o any) (any, *writeError) { return o, nil },
	"$unset":       func(was, _ any) (any, *writeError) { return was, nil }, // see apply
	"$inc":         increment,
	"$max": func(was, o any) (any, *writeError) {
		if was == nil || compare(o, was) > 0 {
			return o, nil
		}
		return was, nil
	},
}

func increment(was, o any) (any, *writeError) {
	if rank(o) != rank(int32(0)) {
		refuse("$inc by %T", o)
	}
	if was == nil {
		return o, nil
	}
	if rank(was) != rank(o) {
		return nil, &writeError{code: codeTypeMismatch, message: "Cannot apply $inc to a value of non-numeric type"}
	}
	_, fraction := was.(float64)
	if _, other := o.(float64); fraction || other {
		return number(was) + number(o), nil
	}
	x, y, _ := integers(was, o)
	sum := x + y
	if (sum > x) != (y > 0) && y != 0 {
		return nil, &writeError{code: codeBadValue, message: "Failed to apply $inc operations to current value"}
	}
	_, long := was.(int64)
	if _, other := o.(int64); long || other || sum > math.MaxInt32 || sum < math.MinInt32 {
		return sum, nil
	}
	return int32(sum), nil
}

// applyPipeline runs the stages of an update that is a pipeline.
func applyPipeline(d document, stages array) (document, *writeError) {
	for _, s := range stages {
		stage, ok := s.(document)
		if !ok || len(stage) != 1 {
			refuse("stage %v", s)
		}
		fields, ok := stage[0].value.(document)
		if stage[0].key != "$set" || !ok {
			refuse("stage %v in updates", stage)
		}
		was := d
		for _, f := range fields {
			v := evaluate(was, f.value)
			if v == nil {
				d = d.without(f.key)
			} else if d, ok = d.with(f.key, v); !ok {
				refuse("$set at %s, which is in no document", f.key)
			}
		}
	}
	return d, nil
}
