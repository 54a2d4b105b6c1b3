// Package wire reads and writes the messages of MongoDB's wire protocol, for tests that stand between a client and its
// database or in the database's place. It knows neither TLS nor compression.
package wire

//lint:file-ignore SA1019 the driver still opens its handshake with OP_QUERY, so it has to be understood

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"
)

const (
	headerBytes = 16
	// maxMessage is what MongoDB takes at most.
	maxMessage = 48_000_000 + 16<<10
)

// Message is one message, with its header.
type Message []byte

var errMalformed = errors.New("malformed message")

// Read reads one message. io.EOF is the regular end of a connection.
func Read(r io.Reader) (Message, error) {
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(header)
	if n < headerBytes || n > maxMessage {
		return nil, fmt.Errorf("%w: it claims %d bytes", errMalformed, n)
	}
	m := append(make(Message, 0, n), header...)[:n]
	if _, err := io.ReadFull(r, m[headerBytes:]); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return m, nil
}

// ID is what an answer refers to.
func (m Message) ID() int32 { return int32(binary.LittleEndian.Uint32(m[4:])) }

func (m Message) opcode() wiremessage.OpCode {
	return wiremessage.OpCode(binary.LittleEndian.Uint32(m[12:]))
}

// Flags are those of an OP_MSG; none for other messages.
func (m Message) Flags() wiremessage.MsgFlag {
	if m.opcode() != wiremessage.OpMsg {
		return 0
	}
	flags, _, _ := wiremessage.ReadMsgFlags(m[headerBytes:])
	return flags
}

// Document returns the one document of a command or a reply, with document sequences put into it as arrays.
func (m Message) Document() (bson.Raw, error) {
	switch m.opcode() {
	case wiremessage.OpMsg:
	case wiremessage.OpQuery: // a driver's first words, before it knows what the server speaks
		return firstQuery(m[headerBytes:])
	default:
		return nil, fmt.Errorf("%w: opcode %v", errMalformed, m.opcode())
	}
	flags, b, ok := wiremessage.ReadMsgFlags(m[headerBytes:])
	if !ok {
		return nil, errMalformed
	}
	if flags&wiremessage.ChecksumPresent != 0 {
		if len(b) < 4 {
			return nil, errMalformed
		}
		b = b[:len(b)-4]
	}
	var body, arrays []byte
	for len(b) > 0 {
		kind, rest, ok := wiremessage.ReadMsgSectionType(b)
		if !ok {
			return nil, errMalformed
		}
		if kind == wiremessage.SingleDocument {
			body, b, ok = wiremessage.ReadMsgSectionSingleDocument(rest)
		} else {
			var name string
			var docs []bsoncore.Document
			name, docs, b, ok = wiremessage.ReadMsgSectionDocumentSequence(rest)
			var at int32
			at, arrays = bsoncore.AppendArrayElementStart(arrays, name)
			for i, d := range docs {
				arrays = bsoncore.AppendDocumentElement(arrays, strconv.Itoa(i), d)
			}
			arrays, _ = bsoncore.AppendArrayEnd(arrays, at)
		}
		if !ok {
			return nil, errMalformed
		}
	}
	if len(body) < 5 {
		return nil, errMalformed
	}
	whole := append(append(append([]byte{}, body[:len(body)-1]...), arrays...), 0)
	whole = bsoncore.UpdateLength(whole, 0, int32(len(whole)))
	return whole, bson.Raw(whole).Validate()
}

func firstQuery(b []byte) (bson.Raw, error) {
	_, b, _ = wiremessage.ReadQueryFlags(b)
	_, b, ok := wiremessage.ReadQueryFullCollectionName(b)
	if !ok || len(b) < 8 {
		return nil, errMalformed
	}
	doc, _, ok := wiremessage.ReadQueryQuery(b[8:]) // past the numbers to skip and to return
	if !ok {
		return nil, errMalformed
	}
	return bson.Raw(doc), nil
}

// New makes an OP_MSG. to is the message that it answers; 0 for a command.
func New(id, to int32, doc []byte) Message {
	at, b := wiremessage.AppendHeaderStart(nil, id, to, wiremessage.OpMsg)
	b = wiremessage.AppendMsgFlags(b, 0)
	b = wiremessage.AppendMsgSectionType(b, wiremessage.SingleDocument)
	b = append(b, doc...)
	return bsoncore.UpdateLength(b, at, int32(len(b)))
}

// Reply makes the answer to a message: an OP_MSG, or to a driver's first words what answers those.
func (m Message) Reply(doc []byte) Message {
	if m.opcode() != wiremessage.OpQuery {
		return New(0, m.ID(), doc)
	}
	at, b := wiremessage.AppendHeaderStart(nil, 0, m.ID(), wiremessage.OpReply)
	b = wiremessage.AppendReplyFlags(b, 0)
	b = wiremessage.AppendReplyCursorID(b, 0)
	b = wiremessage.AppendReplyStartingFrom(b, 0)
	b = wiremessage.AppendReplyNumberReturned(b, 1)
	b = append(b, doc...)
	return bsoncore.UpdateLength(b, at, int32(len(b)))
}

// Command is a command as a client sent it.
type Command struct {
	// Name is the command's name, such as "update" or "find"; "hello" for each of its spellings.
	Name string
	// Body is the whole command, with the documents of an update or an insert as an array in it.
	Body bson.Raw
}

// ItemsOf names the array that holds what a write command writes, by the command's name.
var ItemsOf = map[string]string{"update": "updates", "insert": "documents", "delete": "deletes"}

// Items are the single writes of an update, insert or delete command; none of another.
func (c Command) Items() []bson.Raw {
	list, ok := c.Body.Lookup(ItemsOf[c.Name]).ArrayOK()
	if !ok {
		return nil
	}
	values, err := list.Values()
	if err != nil {
		return nil
	}
	items := make([]bson.Raw, 0, len(values))
	for _, v := range values {
		if doc, ok := v.DocumentOK(); ok {
			items = append(items, doc)
		}
	}
	return items
}

// Command is the message as a command.
func (m Message) Command() (Command, error) {
	body, err := m.Document()
	if err != nil {
		return Command{}, err
	}
	first, err := body.IndexErr(0)
	if err != nil {
		return Command{}, errMalformed
	}
	name := first.Key()
	if name == "isMaster" || name == "ismaster" {
		name = "hello"
	}
	return Command{Name: name, Body: body}, nil
}
